"""Above autograd: lets meta tensors pass for tensors of a CUDA card.

Python code sees `cuda` where a tensor lies on the card, the real decisions of CUDA's dropout,
autocast and scaled dot product attention are taken here, and values read back come from the host.
"""

import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from bertfit.memory.trace_composed import composed
from bertfit.memory.trace_ops import DECIDES, Arguments, Keywords, OpTrace
from bertfit.memory.trace_recorder import Recorder

Call: TypeAlias = Callable[..., Any]
Handler: TypeAlias = Callable[["CudaFace", Call, Arguments, Keywords], object]
HANDLERS: dict[object, Handler] = {}

CUDA = torch.device("cuda", 0)
META = torch.device("meta")
CPU = torch.device("cpu")


def handles(*functions: object) -> Callable[[Handler], Handler]:
    """Register the stand-in of torch functions."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register


class WeightCache:
    """The 16-bit copies of weights that live until the outermost autocast ends."""

    def __init__(self) -> None:
        self._casts: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def clear(self) -> None:
        """Drop all copies."""
        self._casts.clear()

    def cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Cast as `cached_cast` does: only fp32 leaves that need a gradient are remembered."""
        if not tensor.is_floating_point() or tensor.dtype in (dtype, torch.float64):
            return tensor
        lower = dtype == torch.get_autocast_dtype("cuda")
        if not (
            lower
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
            and not torch.is_inference_mode_enabled()
        ):
            return tensor.to(dtype)
        known = self._casts.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        cast = tensor.to(dtype)
        self._casts[id(tensor)] = (weakref.ref(tensor), cast)
        return cast


class CudaFace(TorchFunctionMode):
    """Stands between Python code and torch while a program is traced."""

    def __init__(self, recorder: Recorder, ops: OpTrace) -> None:
        super().__init__()
        self.recorder = recorder
        self.ops = ops
        self.cache = WeightCache()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: tuple[type, ...],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        """Answer in CUDA's place, or pass the call on."""
        keywords = kwargs or {}
        handler = HANDLERS.get(func)
        before, self.ops.from_python = self.ops.from_python, True
        try:
            if handler is not None:
                return handler(self, func, args, keywords)
            opened = composed(func)
            if opened is not None:
                with self:
                    return opened(*args, **keywords)
            if "device" in keywords:
                keywords = {**keywords, "device": to_meta(keywords["device"])}
            return func(*args, **keywords)
        finally:
            self.ops.from_python = before

    def device_of(self, tensor: Tensor) -> torch.device:
        """Return the device that Python code is shown."""
        while torch._C._functorch.is_batchedtensor(tensor):  # inside vmap
            tensor = torch._C._functorch.get_unwrapped(tensor)
        if not tensor.is_meta:
            return tensor.device
        return CUDA if self.recorder.on_card(tensor) else CPU

    def read(self, tensor: Tensor) -> Tensor:
        """Copy values to the host: zeros where they are not known and no model asks.

        Raises:
            ModelError: a model decides by what is not known.
        """
        with torch._C.DisableTorchFunction():
            value = self.recorder.values.of(tensor)
            if value is not None:
                return value.clone()
            if self.recorder.phase in ("forward", "backward"):
                raise self.ops.unknown(torch.ops.aten._local_scalar_dense.default, DECIDES)
            with _disable_current_modes():
                return torch.zeros(tensor.shape, dtype=tensor.dtype)


def to_meta(device: torch.device | str | int | None) -> torch.device | None:
    """Replace a CUDA device by the one that stands for it."""
    if device is None:
        return None
    asked = CUDA if isinstance(device, int) else torch.device(device)
    return META if asked.type == "cuda" else asked


# --- attributes


@handles(Tensor.device.__get__)
def _device(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    return face.device_of(args[0])


@handles(Tensor.is_cuda.__get__)  # type: ignore[attr-defined]
def _is_cuda(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    return args[0].is_meta and face.recorder.on_card(args[0])


@handles(Tensor.is_meta.__get__)  # type: ignore[attr-defined]
def _is_meta(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    return False


@handles(Tensor.is_cpu.__get__)  # type: ignore[attr-defined]
def _is_cpu(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    return face.device_of(args[0]).type == "cpu"


@handles(Tensor.get_device)
def _get_device(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    return 0 if face.device_of(args[0]).type == "cuda" else -1


# --- moving and reading


@handles(Tensor.to)
def _to(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    tensor, device, dtype = args[0], kwargs.get("device"), kwargs.get("dtype")
    copy = kwargs.get("copy", False)
    memory_format = kwargs.get("memory_format", torch.preserve_format)
    flags = []
    for argument in args[1:]:
        if isinstance(argument, torch.dtype):
            dtype = argument
        elif isinstance(argument, torch.device | str | int) and not isinstance(argument, bool):
            device = argument
        elif isinstance(argument, Tensor):
            device, dtype = face.device_of(argument), argument.dtype
        elif isinstance(argument, bool):
            flags.append(argument)
    if len(flags) > 1:
        copy = flags[1]
    here = face.device_of(tensor)
    asked = CUDA if isinstance(device, int) else device
    there = here if asked is None else torch.device(asked)
    wanted = dtype or tensor.dtype
    if there.type == here.type:
        return func(tensor, dtype=wanted, copy=copy, memory_format=memory_format)
    if there.type == "cuda":
        if tensor.is_meta:
            moved = face.ops.like(tensor, wanted)
            face.recorder.categorize(moved, "parameter")
            return moved
        moved = func(tensor, device=META, dtype=wanted, memory_format=memory_format)
        face.recorder.categorize(moved, "input")
        face.recorder.values.know_copy(moved, tensor)
        return moved
    return face.read(tensor).to(wanted)


@handles(torch.tensor, torch.as_tensor)
def _from_data(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    """Make the tensor on the host and move it, as `internal_new_from_data` does."""
    device = kwargs.pop("device", None)
    made = func(*args, **kwargs)
    return made if device is None else _to(face, Tensor.to, (made, device), {})


@handles(torch.empty)
def _empty(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    """Make pinned memory of the host, which is not followed, or pass the call on."""
    if not kwargs.get("pin_memory"):
        return func(*args, **{**kwargs, "device": to_meta(kwargs.get("device"))})
    with _disable_current_modes():
        pinned: Tensor = func(*args, **{**kwargs, "device": META, "pin_memory": False})
    face.recorder.pinned.append(pinned.untyped_storage().nbytes())
    return pinned


@handles(Tensor.cuda)
def _cuda(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    return _to(face, Tensor.to, (args[0], CUDA), {})


@handles(Tensor.cpu)
def _cpu(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    return _to(face, Tensor.to, (args[0], CPU), {})


@handles(Tensor.item, Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.tolist)
def _item(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    tensor = args[0]
    if not tensor.is_meta:
        return func(*args, **kwargs)
    return func(face.read(tensor))


@handles(Tensor.__contains__)
def _contains(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    with face:
        return bool((args[1] == args[0]).any())


@handles(Tensor.__getitem__)
def _get_item(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    """Keep lists of positions on the host, where their values are known: `x[:, [-1, 0]]`."""
    tensor, index = args
    parts = index if isinstance(index, tuple) else (index,)
    if tensor.is_meta and any(isinstance(part, list) for part in parts):
        index = tuple(torch.tensor(part) if isinstance(part, list) else part for part in parts)
    return func(tensor, index)


@handles(Tensor.__setitem__)
def _set_item(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    """Keep a number on the host: torch/csrc/autograd/python_variable_indexing.cpp, for CUDA."""
    tensor, index, value = args
    if isinstance(value, int | float) and tensor.is_meta and face.recorder.on_card(tensor):
        value = torch.scalar_tensor(value, dtype=tensor.dtype, device=CPU)
    return func(tensor, index, value)


@handles(F.dropout)
def _dropout(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    names = ("input", "p", "training", "inplace")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, p, training = given["input"], given.get("p", 0.5), given.get("training", True)
    # aten/src/ATen/native/Dropout.cpp: CUDA has one kernel for it unless p is 0 or 1.
    if x.is_meta and 0 < p < 1 and training and x.numel():
        return torch.native_dropout(x, p, True)[0]
    return func(*args, **kwargs)


@handles(torch._C._nn.mish, torch._C._nn.mish_)
def _mish(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    """Take SiLU in its place, which makes and keeps the same.

    CUDA has a kernel for the backward of either (aten/src/ATen/native/cuda/ActivationMishKernel.cu
    and ActivationSiluKernel.cu); without one, torch makes mish's of ten operations.
    """
    return (torch._C._nn.silu_ if func is torch._C._nn.mish_ else torch._C._nn.silu)(
        *args, **kwargs
    )


@handles(Tensor.backward, torch.autograd.backward)
def _backward(face: CudaFace, func: Call, args: Arguments, kwargs: Keywords) -> object:
    """Run the engine under the mode: what hooks run in it (checkpoints) is Python again."""
    names = ("gradient", "retain_graph", "create_graph", "inputs")
    given = dict(zip(names, args[1:], strict=False)) | kwargs
    roots = args[0] if isinstance(args[0], tuple | list) else (args[0],)
    gradients = given.get("gradient", given.get("grad_tensors"))
    if gradients is None or isinstance(gradients, Tensor):
        gradients = (gradients,) * len(roots)
    gradients = [
        torch.ones_like(root, memory_format=torch.preserve_format) if g is None else g
        for root, g in zip(roots, gradients, strict=True)
    ]
    keep = given.get("retain_graph")
    create = given.get("create_graph", False)
    inputs = given.get("inputs") or ()
    ops, recorder = face.ops, face.recorder
    recorder.phase = "backward"
    ops.in_backward, ops.from_python = True, False
    try:
        with face:
            torch.autograd.graph._engine_run_backward(
                tuple(roots),
                tuple(gradients),
                create if keep is None else keep,
                create,
                tuple(inputs),
                allow_unreachable=True,
                accumulate_grad=True,
            )
    finally:
        ops.in_backward, ops.from_python = False, True
        recorder.phase = "step"
    return None
