"""Checkpoints of a run on disk: whole or not there, and noticed when damaged.

```
checkpoints/
  0007-step-350/
    weights.safetensors    what is trained
    optimizer.safetensors  its moments
    state.json             where the run is
    manifest.json          size and checksum of the three, then the checksum of that line
```

A checkpoint is written into a new folder: every file synced, the manifest last, then the folder
synced, renamed, and its parent synced. So a folder with a number in front is whole after any kill
or power cut, and what rots later no longer agrees with the manifest. Numbers only grow. Knows
nothing of models: tensors by name, and a state that is JSON.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bertfit.errors import ConfigError
from bertfit.language import _
from bertfit.units import format_bytes

FORMAT_VERSION = 1
WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"
STATE, MANIFEST = "state.json", "manifest.json"
CHUNK_BYTES = 1 << 22
# Headers, the state and what the file system itself takes.
ROOM_BYTES = 4 << 20
KEPT = 2

_NAME = re.compile(r"(\d{4,})-step-(\d+)")
# safetensors 0.5, README "Format": names of the element types.
_DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


# A file that is not there is damage; any other refusal of the disk may pass.
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class SaveFailed(Exception):
    """A checkpoint that could not be written; older ones are untouched. The run goes on."""


class Damaged(Exception):
    """A checkpoint that is not what was written."""


class Unreadable(ConfigError):
    """A checkpoint that may be whole, but not for this bertfit or not now."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A training run at one moment.

    Attributes:
        step: steps made so far.
        best_step: the step with the best score so far; 0 where nothing was scored.
        weights: what is trained, by name, on the host.
        optimizer: its state, by name, on the host.
        state: whatever else the run needs, as JSON.
    """

    step: int
    best_step: int
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, object]


class Disk:
    """What a save asks of the operating system; the tests pass one that fails."""

    def write(self, file: BinaryIO, data: memoryview) -> None:
        """Write to a file that is not buffered."""
        while data:
            data = data[file.write(data) :]

    def sync(self, path: Path) -> None:
        """Have a file or folder on the disk before going on."""
        if os.name == "nt" and path.is_dir():  # Windows opens no folders, and needs no such sync
            return
        descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give a folder its name."""
        os.rename(old, new)

    def free_bytes(self, folder: Path) -> int:
        """Say what may still be written."""
        return shutil.disk_usage(folder).free


class CheckpointStore:
    """The checkpoints of one run: the last two and the best.

    Args:
        folder: where they lie; made when it is needed.
        disk: what is written through.
    """

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self._disk = disk or Disk()
        self._damaged: set[str] = set()

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint and let go of those that are no longer needed.

        Raises:
            SaveFailed: no room, or the disk refused; what was there before is still there.
        """
        number = max((number for number, __ in self._found()), default=0) + 1
        target = self.folder / f"{number:04d}-step-{checkpoint.step}"
        new = self.folder / f".new-{target.name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear_leftovers()
            self._check_room(checkpoint)
            new.mkdir()
            self._write_files(new, checkpoint)
            self._disk.sync(new)
            self._disk.rename(new, target)
            self._disk.sync(self.folder)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            raise SaveFailed(" ".join(str(error.strerror or error).split())) from None
        self._prune(checkpoint.best_step)
        return target

    def load_newest(
        self, check: Callable[[Mapping[str, Any]], object] = dict
    ) -> tuple[Checkpoint | None, list[str]]:
        """Read the newest checkpoint that is whole.

        Args:
            check: raises ValueError, with the names of its fields, for a state that is none of
                the run's: such a checkpoint is damaged, too.

        Returns:
            The checkpoint, None where there is none, and why newer ones were passed over.

        Raises:
            Unreadable: it cannot be told whether a newer one is whole. None is passed over for
                that: those that are passed over are removed by later saves.
        """
        passed: list[str] = []
        try:
            found = sorted(self._found(), reverse=True)
        except OSError as error:
            raise _unreadable(self.folder, error) from None
        for __, name in found:
            try:
                return read_checkpoint(self.folder / name, check), passed
            except Damaged as error:
                self._damaged.add(name)
                passed.append(
                    _(
                        "{path}: this checkpoint is damaged ({reason}), so it is passed over."
                    ).format(path=self.folder / name, reason=error)
                )
        return None, passed

    def newest_steps(self) -> list[int]:
        """Return the steps of the checkpoints that are there, the newest first, unread."""
        return [int(name.rpartition("-")[2]) for __, name in sorted(self._found(), reverse=True)]

    def _found(self) -> list[tuple[int, str]]:
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return [(int(match[1]), match[0]) for match in matches if match]

    def _clear_leftovers(self) -> None:
        for path in self.folder.glob(".new-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _check_room(self, checkpoint: Checkpoint) -> None:
        needed = ROOM_BYTES + sum(
            tensor.nbytes
            for tensors in (checkpoint.weights, checkpoint.optimizer)
            for tensor in tensors.values()
        )
        free = self._disk.free_bytes(self.folder)
        if free < needed:
            raise SaveFailed(
                _("{needed} are needed in {folder}, and {free} are free").format(
                    needed=format_bytes(needed), folder=self.folder, free=format_bytes(free)
                )
            )

    def _write_files(self, folder: Path, checkpoint: Checkpoint) -> None:
        files: dict[str, dict[str, object]] = {}
        for name, content in (
            (WEIGHTS, _safetensors(checkpoint.weights)),
            (OPTIMIZER, _safetensors(checkpoint.optimizer)),
            (STATE, iter([memoryview(_json(checkpoint.state))])),
        ):
            files[name] = self._write_file(folder / name, content)
        body = _json(
            {
                "format_version": FORMAT_VERSION,
                "step": checkpoint.step,
                "best_step": checkpoint.best_step,
                "files": files,
            }
        )
        self._write_file(folder / MANIFEST, iter([memoryview(_signed(body))]))

    def _write_file(self, path: Path, content: Iterator[memoryview]) -> dict[str, object]:
        checksum, size = xxhash.xxh3_128(), 0
        with path.open("xb", buffering=0) as file:
            for piece in content:
                for start in range(0, len(piece), CHUNK_BYTES):
                    chunk = piece[start : start + CHUNK_BYTES]
                    checksum.update(chunk)
                    self._disk.write(file, chunk)
                    size += len(chunk)
        self._disk.sync(path)
        return {"bytes": size, "xxh3_128": checksum.hexdigest()}

    def _prune(self, best_step: int) -> None:
        """Remove all but the last two and the best; what cannot be removed does no harm."""
        whole = sorted(item for item in self._found() if item[1] not in self._damaged)
        best = [name for __, name in whole if name.endswith(f"-step-{best_step}")]
        kept = {name for __, name in whole[-KEPT:]} | set(best[-1:])
        for __, name in self._found():
            if name not in kept:
                # Renamed first: a folder that is half removed must not look like a checkpoint.
                gone = self.folder / f".new-{name}"
                try:
                    os.rename(self.folder / name, gone)
                except OSError:
                    continue
                shutil.rmtree(gone, ignore_errors=True)


def read_checkpoint(
    folder: Path, check: Callable[[Mapping[str, Any]], object] = dict
) -> Checkpoint:
    """Read a checkpoint after comparing every byte of it with its manifest.

    Args:
        folder: of the checkpoint.
        check: of its state, as `CheckpointStore.load_newest` takes it.

    Raises:
        Damaged: something is missing or changed.
        Unreadable: it is of a newer format, or the disk does not read.
    """
    try:
        manifest = _read_manifest(folder / MANIFEST)
        for name in (WEIGHTS, OPTIMIZER, STATE):
            _check_file(folder / name, manifest["files"][name])
        return Checkpoint(
            step=manifest["step"],
            best_step=manifest["best_step"],
            weights=load_file(folder / WEIGHTS),
            optimizer=load_file(folder / OPTIMIZER),
            state=_read_state(folder / STATE, check),
        )
    except (*_NO_FILE, ValueError, KeyError, SafetensorError) as error:
        raise Damaged(" ".join(str(error).split())) from None
    except OSError as error:
        raise _unreadable(folder, error) from None


def _unreadable(folder: Path, error: OSError) -> Unreadable:
    return Unreadable(
        _(
            "{path}: cannot be read ({reason}), so it cannot be told whether this checkpoint is "
            "whole; nothing was touched. Make it readable and run again, or remove it to go on "
            "from an older one. To begin anew, say --overwrite or name another --output-dir."
        ).format(path=folder, reason=" ".join(str(error).split()))
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    body = content.partition(b"\n")[0] + b"\n"
    if _signed(body) != content:
        raise Damaged(_("{file} is not as it was written").format(file=path.name))
    manifest = _decode(body, path.name)
    version = manifest.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise Unreadable(
            _(
                "{path}: this checkpoint was written by a newer bertfit, in format {version}; this "
                "one reads {known}. To go on, update: pip install --upgrade bertfit. To begin "
                "anew, say --overwrite or name another --output-dir."
            ).format(path=path.parent, version=manifest["format_version"], known=FORMAT_VERSION)
        )
    numbers = (version, manifest.get("step"), manifest.get("best_step"))
    if not all(isinstance(n, int) for n in numbers) or not isinstance(manifest.get("files"), dict):
        raise Damaged(_("{file} is not as it was written").format(file=path.name))
    return manifest


def _read_state(path: Path, check: Callable[[Mapping[str, Any]], object]) -> dict[str, Any]:
    state = _decode(path.read_bytes(), path.name)
    try:
        check(state)
    except ValueError as error:
        raise Damaged(
            _("{file} holds what this bertfit does not write: {names}").format(
                file=path.name, names=error
            )
        ) from None
    return state


def _decode(content: bytes, file: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        Damaged: it is none.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Damaged(_("{file} is not as it was written").format(file=file))
    return value


def _check_file(path: Path, expected: Mapping[str, object]) -> None:
    checksum, size = xxhash.xxh3_128(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            checksum.update(chunk)
            size += len(chunk)
    if {"bytes": size, "xxh3_128": checksum.hexdigest()} != expected:
        raise Damaged(_("{file} is not as it was written").format(file=path.name))


def _signed(body: bytes) -> bytes:
    return body + xxhash.xxh3_128_hexdigest(body).encode() + b"\n"


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _safetensors(tensors: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """Yield the bytes of a safetensors file, without a second copy of the tensors.

    `safetensors.torch.save_file` writes through a file of its own, so that the checksum would
    need a second pass. The format is 8 bytes for the length of the header, the header, the data.
    """
    header: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of 8
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        if tensor.nbytes:
            # Flattened first: a view in bytes needs one dimension at least.
            yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
