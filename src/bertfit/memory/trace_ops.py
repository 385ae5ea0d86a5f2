"""Below autograd: what each aten operation allocates on the card.

A dispatch mode runs the operation on meta tensors, which have sizes and lifetimes but no bytes.
Views, in-place and pointwise operations allocate their outputs and nothing else; every other
operation needs a rule, or the trace stops and names it.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from bertfit.errors import ModelError
from bertfit.language import N_, _
from bertfit.memory.kernels import Chip, SizeRule
from bertfit.memory.trace_recorder import Recorder

# What an operation is called with: tensors, numbers, lists of them; its schema says which.
Arguments: TypeAlias = tuple[Any, ...]
Keywords: TypeAlias = dict[str, Any]
Rule: TypeAlias = Callable[["OpTrace", OpOverload, Arguments, Keywords], object]

Layout: TypeAlias = tuple[torch.Size, tuple[int, ...], torch.dtype]

RULES: dict[OpOverload, Rule] = {}
# Outputs only, as the CUDA kernels are written; the meta kernel gives shape and dtype.
PLAIN: set[OpOverload] = set()
# Out-of-place operations of one output, whose layout follows from their inputs' layouts.
POINTWISE: set[OpOverload] = set()

_NO_RULE = N_("bertfit does not know what it takes")
BY_VALUES = N_("the size of its result depends on values")
DECIDES = N_("the model decides by values")
# Parts of operations' names, and why no rule can be written.
_NOT_KNOWN = {
    "_fft_": N_("cuFFT chooses on the card what it takes"),
    "nonzero": BY_VALUES,
    "unique": BY_VALUES,
    "masked_select": BY_VALUES,
}


def rule(*overloads: OpOverload) -> Callable[[Rule], Rule]:
    """Register how operations allocate."""

    def register(function: Rule) -> Rule:
        for overload in overloads:
            assert overload not in RULES, f"{overload} has a rule"
            RULES[overload] = function
        return function

    return register


class OpTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches every operation under it and writes allocations and returns to a recorder."""

    def __init__(self, recorder: Recorder, card: Chip) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.card = card
        self.blas_threads: set[bool] = set()
        self.workspaces: list[Tensor] = []
        self._layouts: dict[
            tuple[object, ...], tuple[torch.Size, tuple[int, ...], torch.dtype]
        ] = {}
        # Whether Python code called what runs now; autograd's engine calls from C++.
        self.from_python = True
        self.in_backward = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and the wrapper would import torch._dynamo: a second.
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> object:
        """Run one operation and note what it allocates."""
        keywords = kwargs or {}
        with torch._C.DisableTorchFunction():  # rules see tensors as they are
            out = self._run(func, args, keywords)
            if self.from_python and self.recorder.phase != "optimizer":
                self.recorder.values.follow(func, args, keywords, out)
            return out

    def _run(self, func: OpOverload, args: Arguments, keywords: Keywords) -> object:
        recorder = self.recorder
        if self.in_backward and not self.from_python:
            node = torch._C._current_autograd_node()
            recorder.module = recorder.module_of_node(node._sequence_nr()) if node else ""
        recorder.op = func._opname
        if self._is_host(args):
            return func(*args, **keywords)
        function = RULES.get(func)
        if function is not None:
            return function(self, func, args, keywords)
        if func in POINTWISE:
            return self.pointwise(func, args, keywords)
        if func in PLAIN or _allocates_outputs_only(func):
            PLAIN.add(func)
            return self.note_all(func(*args, **keywords), args)
        if not _touches_card(args):
            return self.note_all(func(*args, **keywords), args)
        if func._opname.startswith("_foreach_"):
            return self.foreach(func, args)
        if _is_composite(func):  # inference mode hands them over whole
            with self:
                return func.decompose(*args, **keywords)
        raise self.unknown(func)

    def unknown(self, func: OpOverload, because: str | None = None) -> ModelError:
        """Return the error of an operation whose memory is not known."""
        reasons = (reason for part, reason in _NOT_KNOWN.items() if part in func._opname)
        module = self.recorder.module
        message = _(
            "{operation} in {module}: {reason}, so the need of this model cannot be predicted. "
            "`bertfit train` tries out what fits instead; or take another model "
            "(docs/models.md)."
        ).format(
            operation=str(func),
            module=module or _("the model"),
            reason=_(because or next(reasons, _NO_RULE)),
        )
        if module.rpartition(".")[2] == "experts":
            message += " " + _(
                'It can be where config.json says "experts_implementation": "grouped_mm": the same '
                "experts, summed in another order."
            )
        return ModelError(message)

    def note_all(self, out: object, args: Arguments = ()) -> object:
        """Follow every output that lies on the card."""
        if isinstance(out, Tensor):
            if out.device.type == "meta" and not self._is_host(args):
                self.recorder.note(out)
        elif isinstance(out, tuple | list):
            for part in out:
                self.note_all(part, args)
        return out

    def _is_host(self, args: Arguments) -> bool:
        """Say whether an operation works on meta tensors that stand for memory of the host."""
        for argument in args:
            first = argument[0] if isinstance(argument, list | tuple) and argument else argument
            if isinstance(first, Tensor) and first.device.type == "meta":
                return not self.recorder.on_card(first)
        return False

    def pointwise(self, func: OpOverload, args: Arguments, keywords: Keywords) -> object:
        """Run an operation whose output's layout follows from its inputs' layouts.

        Layers repeat, so the layout is remembered: torch computes it in slow Python.
        """
        key = (func, *map(_layout, args), *keywords.items())
        known = self._layouts.get(key)
        if known is None or self._is_host(args):
            out = self.note_all(func(*args, **keywords), args)
            if isinstance(out, Tensor) and out.is_meta:
                self._layouts[key] = (out.size(), out.stride(), out.dtype)
            return out
        size, stride, dtype = known
        made = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        self.recorder.note(made)
        return made

    def foreach(self, func: OpOverload, args: Arguments) -> object:
        """Give an out-of-place foreach operation one output per tensor, others nothing."""
        if func._opname.endswith("_"):
            return None
        tensors = args[0]
        assert isinstance(tensors, list | tuple)
        return [self.like(x) for x in tensors]

    def in_engine(self) -> bool:
        """Say whether autograd's engine itself called, not Python code that it runs."""
        return self.in_backward and not self.from_python

    def node_name(self) -> str:
        """Return which backward the engine is in; empty outside of it."""
        node = torch._C._current_autograd_node() if self.in_backward else None
        return node.name() if node else ""

    # --- what rules are written with

    def value(self, func: OpOverload, tensor: Tensor) -> Tensor:
        """Return the values of a tensor, on the host.

        Raises:
            ModelError: a model decides by them, and they are not known.
        """
        value = self.recorder.values.of(tensor)
        if value is None:
            raise self.unknown(func, BY_VALUES)
        return value

    def new(self, shape: object, dtype: torch.dtype) -> Tensor:
        """Allocate a contiguous tensor on the card."""
        out = torch.empty(shape, dtype=dtype, device="meta")  # type: ignore[call-overload]
        self.recorder.note(out)
        return out  # type: ignore[no-any-return]

    def like(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Allocate as `empty_like` does: dense strides are kept."""
        out = torch.empty_like(tensor, dtype=dtype)
        self.recorder.note(out)
        return out

    def contiguous(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or a contiguous copy on the card."""
        if tensor.is_contiguous():
            return tensor
        return self.new(tensor.shape, tensor.dtype)

    def temporary(self, *sizes_bytes: int) -> None:
        """Take blocks inside a kernel and return them in reverse order."""
        self.recorder.temporary(*sizes_bytes)

    def sized(self, rule: SizeRule) -> Tensor:
        """Take a workspace whose size follows from a rule."""
        block = self.new(rule.sizes(), torch.uint8)
        self.recorder.categorize(block, "workspace")
        self.recorder.explain(block, rule)
        return block

    def blas(self) -> None:
        """Make the cuBLAS workspace of this thread at its first use.

        Source: aten/src/ATen/cuda/CublasHandlePool.cpp. Handles belong to threads; on the card
        the backward has a thread of its own, so there are two once it has run.
        """
        backward = self.in_backward
        if backward not in self.blas_threads:
            self.blas_threads.add(backward)
            workspace = self.new((self.card.cublas_workspace_bytes,), torch.uint8)
            self.recorder.categorize(workspace, "workspace")
            self.workspaces.append(workspace)


def _is_composite(func: OpOverload) -> bool:
    name: str = func.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def _touches_card(args: Arguments) -> bool:
    for argument in args:
        parts = argument if isinstance(argument, list | tuple) else (argument,)
        if any(isinstance(part, Tensor) and part.device.type == "meta" for part in parts):
            return True
    return False


def _layout(argument: object) -> object:
    if isinstance(argument, Tensor):
        return (argument.size(), argument.stride(), argument.dtype, argument.is_meta)
    if isinstance(argument, list):
        return tuple(map(_layout, argument))
    return (type(argument), argument)


def _allocates_outputs_only(func: OpOverload) -> bool:
    if torch.Tag.pointwise in func.tags:
        return True
    returns = func._schema.returns
    return bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )
