"""A copy of what is trained, taken between two steps and written while training goes on."""

import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bertfit.engine.optim import Update
from bertfit.errors import ModelError
from bertfit.jobs.checkpoints import Checkpoint, CheckpointStore, SaveFailed
from bertfit.jobs.train_state import TrainState
from bertfit.language import _


class Snapshots:
    """Saves a run: copies on the thread that trains, writes on another.

    The copies live as long as this object, so that later ones find their memory in place: they
    are host memory of the size that `snapshot_bytes` says.

    Args:
        store: where checkpoints go.
        model: what is trained.
        update: its optimizer.
        say: told why a save failed.
    """

    def __init__(
        self, store: CheckpointStore, model: nn.Module, update: Update, say: Callable[[str], None]
    ) -> None:
        self._store, self._model, self._update, self._say = store, model, update, say
        self._copies: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self.saved_step: int | None = None
        self.failures = 0

    @property
    def busy(self) -> bool:
        """Whether an earlier checkpoint is still being written."""
        return self._thread is not None and self._thread.is_alive()

    def take(self, state: TrainState) -> None:
        """Copy the run as it is now and begin to write it; waits for an earlier one first."""
        self.wait()
        weights = {name: self._copy(f"w/{name}", t) for name, t in _weights(self._model).items()}
        moments = _moments(self._model, self._update)
        checkpoint = Checkpoint(
            step=state.step,
            best_step=state.best_step,
            weights=weights,
            optimizer={name: self._copy(f"o/{name}", t) for name, t in moments.items()},
            state=state.to_json(),
        )
        # A daemon: a second Ctrl-C leaves at once, and a folder half written does no harm.
        self._thread = threading.Thread(
            target=self._write, args=(checkpoint,), name="bertfit-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until what was begun is on the disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _copy(self, key: str, tensor: Tensor) -> Tensor:
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = torch.empty(tensor.shape, dtype=tensor.dtype)
        return copy.copy_(tensor.detach())

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            self._store.save(checkpoint)
        except SaveFailed as error:
            self.failures += 1
            self._say(
                _(
                    "Warning: no checkpoint of step {step} ({reason}). Training goes on; the "
                    "older checkpoints in {folder} are whole."
                ).format(step=checkpoint.step, reason=error, folder=self._store.folder)
            )
        else:
            self.saved_step = checkpoint.step


def restore(checkpoint: Checkpoint, model: nn.Module, update: Update) -> None:
    """Put the tensors of a checkpoint in the place of those that are there.

    Raises:
        ModelError: they are those of another model.
    """
    for stored, present in (
        (checkpoint.weights, _weights(model)),
        (checkpoint.optimizer, _moments(model, update)),
    ):
        wrong = sorted(
            name
            for name in stored.keys() | present.keys()
            if name not in stored
            or name not in present
            or stored[name].shape != present[name].shape
        )
        if wrong:
            raise ModelError(
                _(
                    "The checkpoint of step {step} is of another model: {count} of its tensors "
                    "do not fit, the first is {name}. Begin anew with --overwrite."
                ).format(step=checkpoint.step, count=len(wrong), name=wrong[0])
            )
        with torch.no_grad():
            for name, tensor in present.items():
                tensor.copy_(stored[name])


def snapshot_bytes(model: nn.Module, update: Update) -> int:
    """Return the host memory that the copies of `Snapshots` take."""
    tensors = [*_weights(model).values(), *_moments(model, update).values()]
    return sum(tensor.nbytes for tensor in tensors)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = model.state_dict()
    return weights


def _moments(model: nn.Module, update: Update) -> dict[str, Tensor]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}.{kind}": tensor
        for parameter in update.parameters
        for kind, tensor in update.optimizer.state[parameter].items()
    }
