"""AdamW whose two moments are kept in few bits: 8-bit codes by block, or bfloat16.

The arithmetic is that of torch's fused AdamW in float32; only what is remembered between two steps
is coarser. Large tensors are gone through in pieces, so that their float32 moments never exist as a
whole.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

# bitsandbytes 0.50, `Optimizer8bit(min_8bit_size=4096)`: small tensors keep float32, since they
# cost nothing, and biases and norms are sensitive.
SMALL_SIZE = 4096
# bitsandbytes 0.50: so many numbers share one scale. A row of 768 is three blocks, so a piece of
# the vocabulary that is frequent does not take the digits of one that is rare.
BLOCK_SIZE = 256
# Numbers that are updated at once: beside its state an update holds about 20 bytes of each.
PIECE_SIZE = 1 << 20

MOMENTS = ("exp_avg", "exp_avg_sq")
# Of codes, the root of the second moment is kept. The seven decades of the levels are only three
# and a half of a gradient in its square; below them the moment would be zero, and the step without
# bound. After 100 steps, with gradients over four decades in each block, the weights were 0.13 of
# their way apart from float32's; with the square itself, 31 (tests/engine/test_optimizers.py).
ROOT = "exp_avg_sq"
Storage = Literal["8bit", "bf16"]


def dynamic_levels(signed: bool) -> Tensor:
    """Return the 256 numbers that a code can stand for, ascending, within [-1, 1] or [0, 1].

    Seven decades, each with twice the levels of the one below: precise for small numbers and large.

    Source: Dettmers et al. 2022, https://arxiv.org/abs/2110.02861, and `create_dynamic_map` of
        bitsandbytes 0.50.
    """
    levels = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1.0, 2 ** (decade + (not signed)) + 1, dtype=torch.float64)
        middles = ((edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)).tolist()
        levels += middles + [-middle for middle in middles if signed]
    return torch.tensor(sorted(levels), dtype=torch.float32)


def _beside(parameter: nn.Parameter, values: Tensor) -> Tensor:
    """Return values where a parameter lies, which the memory trace must be able to follow."""
    return parameter.new_empty(values.shape, dtype=values.dtype).detach().copy_(values)


class CompactAdamW(torch.optim.Optimizer):
    """AdamW with compact moments, which are made at once.

    As torch's fused optimizers do, it divides the gradients by `grad_scale`, and changes neither
    weights nor state where `found_inf` is not zero; the host is not asked.

    Args:
        groups: float32 parameters with `lr` and `weight_decay`.
        storage: how the moments of a large parameter are kept.
    """

    grad_scale: Tensor
    found_inf: Tensor

    def __init__(self, groups: list[dict[str, Any]], *, storage: Storage) -> None:
        super().__init__(groups, {"betas": (0.9, 0.999), "eps": 1e-8})
        self._storage = storage
        self._levels: dict[str, Tensor] = {}
        self._middles: dict[str, Tensor] = {}
        parameters = [p for group in self.param_groups for p in group["params"]]
        if storage == "8bit" and parameters:
            for name, signed in zip(MOMENTS, (True, False), strict=True):
                levels = dynamic_levels(signed)
                middles = (levels[1:] + levels[:-1]) / 2
                self._levels[name] = _beside(parameters[0], levels)
                self._middles[name] = _beside(parameters[0], middles)
        for parameter in parameters:
            self.state[parameter] = self._new_state(parameter)

    def _new_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        size = parameter.numel()
        state = {"step": parameter.new_zeros((), dtype=torch.float32)}
        blocks = -(-size // BLOCK_SIZE)
        for name in MOMENTS:
            if size < SMALL_SIZE:
                state[name] = torch.zeros_like(parameter)
            elif self._storage == "bf16":
                state[name] = parameter.new_zeros(size, dtype=torch.bfloat16)
            else:  # whatever the codes are, at a scale of zero they mean zero
                state[name] = parameter.new_zeros(blocks * BLOCK_SIZE, dtype=torch.uint8)
                state[f"{name}_scale"] = parameter.new_zeros(blocks, dtype=torch.float32)
        return state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            for parameter in trained:
                self.state[parameter]["step"].add_(1)
            small = [p for p in trained if p.numel() < SMALL_SIZE]
            if small:
                means, squares = ([self.state[p][name] for p in small] for name in MOMENTS)
                steps = [self.state[p]["step"] for p in small]
                self._fused(group, list(small), [p.grad for p in small], means, squares, steps)
            for parameter in trained:
                if parameter.numel() >= SMALL_SIZE:
                    self._update_in_pieces(group, parameter)
            for parameter in trained:
                self.state[parameter]["step"].sub_(self.found_inf)

    def _update_in_pieces(self, group: dict[str, Any], parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        state = self.state[parameter]
        weights, gradients = parameter.view(-1), parameter.grad.reshape(-1)
        for begin in range(0, len(weights), PIECE_SIZE):
            end = min(begin + PIECE_SIZE, len(weights))
            mean, square = (self._read(state, name, begin, end) for name in MOMENTS)
            self._fused(
                group,
                [weights[begin:end]],
                [gradients[begin:end]],
                [mean[: end - begin]],
                [square[: end - begin]],
                [state["step"]],
            )
            for name, values in zip(MOMENTS, (mean, square), strict=True):
                self._write(state, name, begin, end, values)

    def _fused(
        self,
        group: dict[str, Any],
        weights: list[Tensor],
        gradients: list[Tensor | None],
        means: list[Tensor],
        squares: list[Tensor],
        steps: list[Tensor],
    ) -> None:
        torch._fused_adamw_(
            weights,
            gradients,  # type: ignore[arg-type]
            means,
            squares,
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
        )

    def _read(self, state: dict[str, Tensor], name: str, begin: int, end: int) -> Tensor:
        """Return a piece of a moment, (n,) float32; of codes, whole blocks of it."""
        if self._storage == "bf16":
            return state[name][begin:end].float()
        first, last = begin // BLOCK_SIZE, -(-end // BLOCK_SIZE)
        codes = state[name][first * BLOCK_SIZE : last * BLOCK_SIZE]
        values = self._levels[name].index_select(0, codes.int())
        values.view(-1, BLOCK_SIZE).mul_(state[f"{name}_scale"][first:last, None])
        return values.square_() if name == ROOT else values

    def _write(
        self, state: dict[str, Tensor], name: str, begin: int, end: int, values: Tensor
    ) -> None:
        """Remember a piece of a moment; `values` is overwritten."""
        if self._storage == "bf16":
            state[name][begin:end].copy_(values)
            return
        if name == ROOT:
            values.sqrt_()
        first, last = begin // BLOCK_SIZE, -(-end // BLOCK_SIZE)
        blocks = values.view(-1, BLOCK_SIZE)
        scales = torch.linalg.vector_norm(blocks, ord=float("inf"), dim=1)
        # A block of zeros has no largest number to divide by.
        blocks.div_(scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None])
        codes = torch.bucketize(values, self._middles[name], out_int32=True).to(torch.uint8)
        # -1 is no level, so codes made of decoded numbers may differ: a refused step keeps the old.
        refused = self.found_inf > 0
        for kept, new in (
            (state[name][first * BLOCK_SIZE : last * BLOCK_SIZE], codes),
            (state[f"{name}_scale"][first:last], scales),
        ):
            kept.copy_(torch.where(refused, kept, new))
