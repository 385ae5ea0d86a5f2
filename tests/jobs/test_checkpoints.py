"""Checkpoints on disks that fail, fill up, lose power and rot."""

import itertools
import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import load_file

from bertfit.jobs import checkpoints
from bertfit.jobs.checkpoints import (
    Checkpoint,
    CheckpointStore,
    Damaged,
    Disk,
    SaveFailed,
    Unreadable,
    read_checkpoint,
)
from jobs.failing_disks import CountingDisk, ForgetfulDisk, PowerCut, QuickDisk


def checkpoint(step: int, best_step: int = 0) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    return Checkpoint(
        step=step,
        best_step=best_step,
        weights={
            "a.weight": torch.randn(40, 30, generator=generator),
            "a.bias": torch.randn(30, generator=generator).bfloat16(),
            "empty": torch.zeros(0, 4),
        },
        optimizer={
            "a.weight.exp_avg": torch.randn(40, 30, generator=generator),
            "a.weight.step": torch.tensor(float(step)),
        },
        state={"step": step, "decay": 0.1 + step, "名字": [1, None, {"x": 2.5}]},
    )


def same(one: Checkpoint, two: Checkpoint) -> bool:
    def tensors(c: Checkpoint) -> dict[str, torch.Tensor]:
        return {**c.weights, **c.optimizer}

    return (
        (one.step, one.best_step, one.state) == (two.step, two.best_step, two.state)
        and tensors(one).keys() == tensors(two).keys()
        and all(torch.equal(t, tensors(two)[name]) for name, t in tensors(one).items())
        and all(t.dtype == tensors(two)[name].dtype for name, t in tensors(one).items())
    )


def newest(folder: Path) -> Checkpoint:
    found, __ = CheckpointStore(folder).load_newest()
    assert found is not None
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_read_is_what_was_saved_bit_for_bit(tmp_path: Path) -> None:
    CheckpointStore(tmp_path / "c").save(checkpoint(3, best_step=2))
    assert same(newest(tmp_path / "c"), checkpoint(3, best_step=2))


def test_the_files_are_ordinary_safetensors_and_json(tmp_path: Path) -> None:
    folder = CheckpointStore(tmp_path / "c").save(checkpoint(3))
    weights = load_file(folder / "weights.safetensors")
    assert torch.equal(weights["a.weight"], checkpoint(3).weights["a.weight"])
    assert json.loads((folder / "state.json").read_text())["decay"] == 3.1
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step, best in ((10, 10), (20, 10), (30, 10), (40, 10), (50, 50), (60, 50), (70, 50)):
        store.save(checkpoint(step, best))
        if step == 40:
            assert names(tmp_path) == ["0001-step-10", "0003-step-30", "0004-step-40"]
    assert names(tmp_path) == ["0005-step-50", "0006-step-60", "0007-step-70"]


def test_a_step_that_is_saved_again_replaces_nothing_before_it_is_whole(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(checkpoint(10))
    store.save(checkpoint(10, best_step=10))
    assert names(tmp_path) == ["0001-step-10", "0002-step-10"]
    assert newest(tmp_path).best_step == 10


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "nowhere").load_newest() == (None, [])


def operations(folder: Path) -> CountingDisk:
    disk = CountingDisk()
    CheckpointStore(folder, disk).save(checkpoint(2))
    return disk


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHUNK_BYTES", 1000)  # many writes of small tensors


def test_a_fault_at_every_write_fsync_and_rename_leaves_the_older_one(tmp_path: Path) -> None:
    count = operations(tmp_path / "count").count
    assert count > 20
    for fail_at in range(count):
        folder = tmp_path / str(fail_at)
        CheckpointStore(folder, QuickDisk()).save(checkpoint(1))
        with pytest.raises(SaveFailed, match="Input/output error"):
            CheckpointStore(folder, CountingDisk(fail_at)).save(checkpoint(2))
        found = newest(folder)
        # The sync of the parent comes last: a failure there leaves both.
        assert same(found, checkpoint(2 if fail_at == count - 1 else 1))
        assert not list(folder.glob(".new-*"))
        CheckpointStore(folder, QuickDisk()).save(checkpoint(3))
        assert same(newest(folder), checkpoint(3)), "a later save goes through"


def test_a_full_disk_at_every_write_leaves_the_older_one(tmp_path: Path) -> None:
    for fail_at in range(operations(tmp_path / "count").writes):
        folder = tmp_path / str(fail_at)
        CheckpointStore(folder, QuickDisk()).save(checkpoint(1))
        with pytest.raises(SaveFailed, match="No space left"):
            CheckpointStore(folder, CountingDisk(fail_at, fill=True)).save(checkpoint(2))
        assert same(newest(folder), checkpoint(1))
        assert names(folder) == ["0001-step-1"], "what was half written is gone again"


def test_a_power_cut_at_every_operation_leaves_a_whole_one(tmp_path: Path) -> None:
    count = operations(tmp_path / "count").count
    for fail_at, seed in itertools.product(range(count), range(3)):
        folder = tmp_path / f"{fail_at}-{seed}"
        CheckpointStore(folder, QuickDisk()).save(checkpoint(1))
        with pytest.raises(PowerCut):
            CheckpointStore(folder, ForgetfulDisk(fail_at, seed)).save(checkpoint(2))
        found, passed = CheckpointStore(folder).load_newest()
        assert found is not None and not passed, "what has a number is whole"
        assert same(found, checkpoint(found.step))
        CheckpointStore(folder, QuickDisk()).save(checkpoint(3))
        assert not list(folder.glob(".new-*")), "the next save sweeps up"
        shutil.rmtree(folder)


def test_500_bit_flips_and_truncations_are_noticed(tmp_path: Path) -> None:
    whole = CheckpointStore(tmp_path / "c").save(checkpoint(5))
    files = sorted(whole.iterdir())
    contents = {path: path.read_bytes() for path in files}
    rng = random.Random(7)
    for number in range(500):
        path = rng.choice(files)
        content = bytearray(contents[path])
        if number % 2:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        else:
            del content[rng.randrange(len(content)) :]
        path.write_bytes(content)
        with pytest.raises(Damaged):
            read_checkpoint(whole)
        path.write_bytes(contents[path])
    assert same(read_checkpoint(whole), checkpoint(5))


@pytest.mark.parametrize("name", ["weights.safetensors", "state.json", "manifest.json"])
def test_a_missing_file_is_noticed(tmp_path: Path, name: str) -> None:
    folder = CheckpointStore(tmp_path).save(checkpoint(5))
    (folder / name).unlink()
    with pytest.raises(Damaged, match=name):
        read_checkpoint(folder)


def test_a_damaged_newest_falls_back_and_says_so(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(checkpoint(10))
    damaged = store.save(checkpoint(20))
    (damaged / "weights.safetensors").write_bytes(b"rot")
    store = CheckpointStore(tmp_path)
    found, passed = store.load_newest()
    assert found is not None and same(found, checkpoint(10))
    assert len(passed) == 1 and "0002-step-20" in passed[0] and "weights" in passed[0]
    store.save(checkpoint(20))
    assert names(tmp_path) == ["0001-step-10", "0003-step-20"], "the damaged one is let go"
    assert same(newest(tmp_path), checkpoint(20))


def test_a_disk_without_room_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    class Full(Disk):
        def free_bytes(self, folder: Path) -> int:
            return 1 << 20

    CheckpointStore(tmp_path).save(checkpoint(1))
    with pytest.raises(SaveFailed, match=r"MiB are needed in .*, and 1 MiB are free"):
        CheckpointStore(tmp_path, Full()).save(checkpoint(2))
    assert names(tmp_path) == ["0001-step-1"]


def test_a_checkpoint_of_a_newer_format_is_not_guessed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "FORMAT_VERSION", 99)
    CheckpointStore(tmp_path).save(checkpoint(1))
    monkeypatch.undo()
    with pytest.raises(Unreadable, match="newer bertfit, in format 99"):
        CheckpointStore(tmp_path).load_newest()


def signed(folder: Path, **fields: object) -> None:
    """Change a manifest, and sign it as bertfit does."""
    path = folder / checkpoints.MANIFEST
    manifest = json.loads(path.read_bytes().partition(b"\n")[0])
    path.write_bytes(checkpoints._signed(checkpoints._json({**manifest, **fields})))


def entry(content: bytes) -> dict[str, object]:
    return {"bytes": len(content), "xxh3_128": xxhash.xxh3_128_hexdigest(content)}


@pytest.mark.parametrize(
    "fields",
    [
        {"format_version": "2"},
        {"format_version": None},
        {"step": "1"},
        {"best_step": None},
        {"files": None},
        {"files": []},
        {"files": {}},
        {"files": {name: 5 for name in ("weights.safetensors", "optimizer.safetensors")}},
    ],
)
def test_a_signed_but_odd_manifest_is_damage(tmp_path: Path, fields: dict[str, object]) -> None:
    CheckpointStore(tmp_path).save(checkpoint(1))
    signed(CheckpointStore(tmp_path).save(checkpoint(2)), **fields)
    found, passed = CheckpointStore(tmp_path).load_newest()
    assert found is not None and found.step == 1
    assert len(passed) == 1 and "0002-step-2: this checkpoint is damaged" in passed[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[]", "state.json is not as it was written"),
        (b"[" * 100_000, "state.json is not as it was written"),
        (b'{"zzz": 1}', "state.json holds what this bertfit does not write: zzz"),
    ],
)
def test_a_signed_but_odd_state_is_damage(tmp_path: Path, content: bytes, reason: str) -> None:
    def check(state: Mapping[str, object]) -> None:
        if "zzz" in state:
            raise ValueError("zzz")

    CheckpointStore(tmp_path).save(checkpoint(1))
    folder = CheckpointStore(tmp_path).save(checkpoint(2))
    files = json.loads((folder / "manifest.json").read_bytes().partition(b"\n")[0])["files"]
    (folder / "state.json").write_bytes(content)
    signed(folder, files={**files, "state.json": entry(content)})
    found, passed = CheckpointStore(tmp_path).load_newest(check)
    assert found is not None and found.step == 1
    assert len(passed) == 1 and f"damaged ({reason})" in passed[0]
