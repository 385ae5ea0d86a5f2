"""A copy of what is trained, taken between two steps and written while training goes on."""

import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bertfit.engine.oom import first_line
from bertfit.engine.optim import Update
from bertfit.errors import ModelError
from bertfit.jobs.checkpoints import Checkpoint, CheckpointStore, SaveFailed
from bertfit.jobs.train_state import TrainState
from bertfit.language import _


class Snapshots:
    """Saves a run: copies on the thread that trains, writes on another.

    The copies live as long as this object, so that later ones find their memory in place: host
    memory of the size that `engine.fence.snapshot_bytes` says. Its first touch is most of the time
    that a first copy takes, so `prepare` may do that before training begins.

    Args:
        store: where checkpoints go.
        model: what is trained.
        update: its optimizer.
        say: told why a save failed.
        sync: called on the writing thread before anything is written: has on the disk what the
            checkpoint will say is there.
    """

    def __init__(
        self,
        store: CheckpointStore,
        model: nn.Module,
        update: Update,
        say: Callable[[str], None],
        sync: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._model, self._update, self._say = store, model, update, say
        self._sync = sync
        self._copies: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self.saved_step: int | None = None
        self.failures = 0

    @property
    def busy(self) -> bool:
        """Whether an earlier checkpoint is still being written."""
        return self._thread is not None and self._thread.is_alive()

    def prepare(self) -> None:
        """Take the memory of the copies."""
        for tensors in self._tensors():
            for key, tensor in tensors.items():
                self._room(key, tensor).zero_()  # touched: the system gives pages at first touch

    def take(self, state: TrainState) -> None:
        """Copy the run as it is now and begin to write it; waits for an earlier one first."""
        self.wait()
        weights, optimizer = (
            {key: self._room(key, tensor).copy_(tensor) for key, tensor in tensors.items()}
            for tensors in self._tensors()
        )
        checkpoint = Checkpoint(
            step=state.step,
            best_step=state.best_step,
            weights=weights,
            optimizer=optimizer,
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

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return _weights(self._model, self._update), _moments(self._model, self._update)

    def _room(self, key: str, tensor: Tensor) -> Tensor:
        room = self._copies.get(key)
        if room is None:
            room = self._copies[key] = torch.empty(tensor.shape, dtype=tensor.dtype)
        return room

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            self._sync()
            self._store.save(checkpoint)
        except (SaveFailed, OSError, MemoryError) as error:
            self.failures += 1
            reason = error.strerror if isinstance(error, OSError) else first_line(str(error))
            self._say(
                _(
                    "Warning: no checkpoint of step {step} ({reason}). Training goes on; the "
                    "older checkpoints in {folder} are whole."
                ).format(step=checkpoint.step, reason=reason, folder=self._store.folder)
            )
        else:
            self.saved_step = checkpoint.step


def restore(checkpoint: Checkpoint, model: nn.Module, update: Update) -> None:
    """Put the tensors of a checkpoint in the place of those that are there.

    Raises:
        ModelError: they are those of another model.
    """
    for stored, present in (
        (checkpoint.weights, _weights(model, update)),
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
    update.publish()


def _weights(model: nn.Module, update: Update) -> dict[str, Tensor]:
    """Return what training changes; a frozen weight is as the starting model has it."""
    held: dict[str, Tensor] = model.state_dict(keep_vars=True)
    return {
        name: (update.master(tensor) if isinstance(tensor, nn.Parameter) else tensor).detach()
        for name, tensor in held.items()
        if tensor.requires_grad or not isinstance(tensor, nn.Parameter)
    }


def _moments(model: nn.Module, update: Update) -> dict[str, Tensor]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}.{kind}": tensor
        for parameter in update.parameters
        for kind, tensor in update.optimizer.state[update.master(parameter)].items()
    }
