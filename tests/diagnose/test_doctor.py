"""What the doctor makes of machines: real facts of broken set-ups, without a card."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bertfit.cli import main
from bertfit.diagnose.doctor import Finding, find_all, has_kernels
from bertfit.diagnose.machine import (
    CardState,
    Machine,
    TorchBuild,
    build_architectures,
    collect,
)
from bertfit.language import use_language
from bertfit.memory.device import CardProcess, resolve_device
from bertfit.memory.measurement import Measurement
from bertfit.planning.request import card_precision
from bertfit.units import GIB, MIB

# torch 2.14.1 from PyPI, and the CUDA 12.6 build of the same version.
CUDA_13 = TorchBuild(
    version="2.14.1+cu130",
    cuda="13.0",
    architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    cuda_available=True,
)
CUDA_12 = TorchBuild(
    version="2.14.1+cu126",
    cuda="12.6",
    architectures=("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
    cuda_available=True,
)
CPU = TorchBuild(version="2.14.1+cpu", cuda=None, architectures=(), cuda_available=False)

MEASURED = Measurement(
    name="NVIDIA GeForce RTX 3050 Laptop GPU",
    total_bytes=3902 * MIB,
    torch="2.14.1",
    driver="580.95",
    context_bytes=310 * MIB,
    matmul_flops=9e12,
    fp32_flops=4e12,
    memory_bandwidth=170e9,
    measured_at="2026-11-30T12:00:00+00:00",
)
RTX_3050 = CardState(
    index=0,
    name="NVIDIA GeForce RTX 3050 Laptop GPU",
    compute_capability=(8, 6),
    total_bytes=4096 * MIB,
    free_bytes=3800 * MIB,
    measurement=MEASURED,
)
HEALTHY = Machine(
    system="Linux",
    python="3.11.7",
    packages={"torch": "2.14.1"},
    torch=CUDA_13,
    driver="580.95",
    driver_cuda=(13, 0),
    cards=(RTX_3050,),
    cpu="a CPU",
    cpu_cores=8,
    cpu_features=("avx2",),
    ram_bytes=16 * GIB,
    ram_available_bytes=12 * GIB,
    disk_path=Path("/home/student"),
    disk_free_bytes=100 * GIB,
)


def kinds(machine: Machine) -> list[str]:
    return [finding.kind for finding in find_all(machine)]


def one(machine: Machine, kind: str) -> Finding:
    [finding] = [finding for finding in find_all(machine) if finding.kind == kind]
    return finding


def test_a_healthy_machine_has_no_findings() -> None:
    assert kinds(HEALTHY) == []


@pytest.mark.parametrize(
    ("capability", "build", "runs"),
    [
        ((8, 6), CUDA_13, True),
        ((8, 9), CUDA_13, True),  # code for 8.6 runs on 8.9
        ((7, 5), CUDA_13, True),
        ((7, 0), CUDA_13, False),
        ((6, 1), CUDA_13, False),
        ((12, 0), CUDA_13, True),
        ((6, 1), CUDA_12, True),  # code for 6.0 runs on 6.1
        ((5, 2), CUDA_12, True),
        ((12, 0), CUDA_12, False),
        ((3, 7), CUDA_12, False),
    ],
)
def test_kernels_run_on_later_minors_of_their_major(capability, build, runs) -> None:
    assert has_kernels(capability, build.architectures) == runs


def test_code_that_the_driver_translates_runs_on_every_later_card() -> None:
    assert has_kernels((12, 0), ("sm_80", "compute_90"))
    assert not has_kernels((8, 6), ("compute_90",))


def test_the_cards_of_a_build_are_read_from_its_configuration() -> None:
    text = (
        "-gencode arch=compute_75,code=sm_75 -gencode;arch=compute_86,code=sm_86 "
        "-gencode arch=compute_120,code=sm_120 -gencode arch=compute_120,code=compute_120 "
        "-gencode arch=compute_90a,code=sm_90a"
    )
    assert build_architectures(text) == ("sm_75", "sm_86", "sm_90", "compute_120", "sm_120")
    assert build_architectures("CPU only") == ()


def test_an_old_card_is_sent_to_the_build_that_has_its_kernels() -> None:
    card = replace(RTX_3050, name="NVIDIA GeForce GTX 1080 Ti", compute_capability=(6, 1))
    finding = one(replace(HEALTHY, cards=(card,)), "no-kernels")
    assert finding.severity == "problem"
    assert "download.pytorch.org/whl/cu126" in finding.message
    assert "6.1" in finding.message and "sm_75" in finding.message
    assert "no-kernels" not in kinds(replace(HEALTHY, cards=(card,), torch=CUDA_12))


def test_a_new_card_is_sent_to_a_newer_torch() -> None:
    card = replace(RTX_3050, name="NVIDIA GeForce RTX 5090", compute_capability=(12, 0))
    finding = one(replace(HEALTHY, cards=(card,), torch=CUDA_12), "no-kernels")
    assert "--upgrade" in finding.message and "whl/cu126" not in finding.message


def test_a_kepler_card_is_given_up() -> None:
    card = replace(RTX_3050, name="Tesla K80", compute_capability=(3, 7))
    assert "too old" in one(replace(HEALTHY, cards=(card,)), "no-kernels").message


def test_a_torch_without_cuda_beside_a_card_is_a_problem() -> None:
    assert one(replace(HEALTHY, torch=CPU), "cpu-build").severity == "problem"
    assert kinds(replace(HEALTHY, torch=CPU, cards=())) == ["no-card"]


def test_no_card_is_only_a_note() -> None:
    machine = replace(HEALTHY, cards=(), torch=replace(CUDA_13, cuda_available=False))
    assert one(machine, "no-card").severity == "note"


def test_a_driver_older_than_the_build_is_named_with_the_one_that_is_needed() -> None:
    machine = replace(
        HEALTHY,
        driver="535.54",
        driver_cuda=(12, 2),
        torch=replace(CUDA_13, cuda_available=False),
    )
    message = one(machine, "old-driver").message
    assert "535.54" in message and "12.2" in message and "580" in message
    assert "card-not-seen" not in kinds(machine)


def test_within_one_major_version_any_driver_will_do() -> None:
    assert kinds(replace(HEALTHY, torch=CUDA_12, driver_cuda=(12, 0))) == []


def test_a_card_that_torch_does_not_see_is_reported() -> None:
    machine = replace(HEALTHY, torch=replace(CUDA_13, cuda_available=False))
    assert "card-not-seen" in kinds(machine)
    hidden = replace(machine, environment={"CUDA_VISIBLE_DEVICES": "-1"})
    assert "card-hidden" in kinds(hidden) and "card-not-seen" not in kinds(hidden)


def test_a_busy_card_names_who_holds_it() -> None:
    card = replace(
        RTX_3050,
        free_bytes=900 * MIB,
        processes=(
            CardProcess(pid=4321, name="python", used_bytes=2900 * MIB),
            CardProcess(pid=12, name="Xorg", used_bytes=None),
        ),
    )
    message = one(replace(HEALTHY, cards=(card,)), "card-busy").message
    assert "python (4321) 2.83 GiB" in message and "Xorg (12) ?" in message
    assert "900 MiB of 4.00 GiB" in message
    silent = replace(card, processes=())
    assert "does not say" in one(replace(HEALTHY, cards=(silent,)), "card-busy").message


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("CUDA_MODULE_LOADING", "EAGER", "eager-loading"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "no-caching"),
        ("CUDA_LAUNCH_BLOCKING", "1", "blocking-launches"),
    ],
)
def test_settings_that_cost_memory_or_speed_are_problems(name, value, kind) -> None:
    assert kinds(replace(HEALTHY, environment={name: value})) == [kind]


def test_harmless_settings_are_no_problem() -> None:
    harmless = {"CUDA_MODULE_LOADING": "LAZY", "CUDA_LAUNCH_BLOCKING": "0", "OMP_NUM_THREADS": "1"}
    assert kinds(replace(HEALTHY, environment=harmless)) == []


def test_little_ram_disk_and_a_silent_hub_are_problems() -> None:
    poor = replace(
        HEALTHY, ram_available_bytes=GIB, disk_free_bytes=GIB, hub_answers=False, hub="https://x"
    )
    assert kinds(poor) == ["little-ram", "little-disk", "hub-unreachable"]
    assert "https://hf-mirror.com" in one(poor, "hub-unreachable").message
    assert kinds(replace(HEALTHY, hub_answers=True)) == []


def test_problems_come_before_notes() -> None:
    card = replace(RTX_3050, compute_capability=(7, 5), measurement=None, free_bytes=100 * MIB)
    found = find_all(replace(HEALTHY, cards=(card,)))
    assert [finding.kind for finding in found] == ["card-busy", "no-bf16", "not-measured"]


@pytest.mark.parametrize("slug", ["gtx-1080", "v100-16gb", "t4"])
def test_what_stands_in_for_bf16_is_what_a_plan_takes(slug: str) -> None:
    device = resolve_device(slug)
    card = replace(RTX_3050, name=slug, compute_capability=device.compute_capability)
    note = one(replace(HEALTHY, cards=(card,), torch=CUDA_12), "no-bf16")
    assert f"uses {card_precision(device)}" in note.message


def test_collecting_asks_the_hub_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def reach(address: str) -> bool:
        asked.append(address)
        return False

    monkeypatch.setenv("HF_ENDPOINT", "https://hf-mirror.com")
    assert collect(reach=reach).hub_answers is None and asked == []
    assert collect(hub=True, reach=reach).hub_answers is False
    assert asked == ["https://hf-mirror.com"]


def test_this_machine_is_described() -> None:
    machine = collect()
    assert machine.torch.version and machine.cpu_cores >= 1
    assert 0 < machine.ram_available_bytes <= machine.ram_bytes
    if machine.torch.cuda is not None:
        assert machine.torch.architectures


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = replace(RTX_3050, free_bytes=GIB)
    import bertfit.cli.doctor as cli

    monkeypatch.setattr(cli, "collect", lambda **_given: replace(HEALTHY, cards=(busy,)))


@pytest.mark.usefixtures("machine")
def test_the_command_prints_findings_and_exits_with_one(capsys) -> None:
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "RTX 3050" in out and "problem: " in out and "context 310 MiB" in out


@pytest.mark.usefixtures("machine")
def test_the_command_gives_one_json_document(capsys) -> None:
    assert main(["doctor", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["kind"] == "card-busy"
    assert document["machine"]["cards"][0]["compute_capability"] == [8, 6]


@pytest.mark.usefixtures("machine")
def test_the_command_speaks_chinese(capsys) -> None:
    use_language("zh")
    assert main(["doctor"]) == 1
    assert "问题" in capsys.readouterr().out


def test_a_healthy_machine_exits_with_zero(monkeypatch, capsys) -> None:
    import bertfit.cli.doctor as cli

    monkeypatch.setattr(cli, "collect", lambda **_given: HEALTHY)
    assert main(["doctor"]) == 0
    assert "Nothing is in the way." in capsys.readouterr().out


def test_measuring_without_a_card_is_refused(capsys) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card here")
    assert main(["doctor", "--measure"]) == 2
    assert "sees no CUDA card" in capsys.readouterr().err
