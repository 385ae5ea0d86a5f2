"""`bertfit doctor`."""

from typing import Annotated

import typer

from bertfit.cli.output import print_json
from bertfit.diagnose.doctor import Finding, find_all
from bertfit.diagnose.machine import CardState, Machine, collect
from bertfit.language import _
from bertfit.memory.measurement import Measurement, measure_card, remember
from bertfit.units import format_bytes


def command(
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help=_("measure the card's context and speed, and remember them")
        ),
    ] = False,
    card: Annotated[int, typer.Option("--card", help=_("number of the card to measure"))] = 0,
    hub: Annotated[
        bool, typer.Option("--hub", help=_("ask the model hub whether it answers"))
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help=_("print one JSON document on stdout"))
    ] = False,
) -> int:
    """Print what the machine is and what is in the way; 1 if there is a problem."""
    measured = None
    if measure:  # first, while this process has no context on the card
        from bertfit.memory.cuda_probe import CudaProbe

        measured = measure_card(CudaProbe(card))
        remember(measured)
    machine = collect(hub=hub)
    findings = find_all(machine)
    if as_json:
        print_json({"machine": machine, "findings": findings, "measured": measured})
    else:
        _print(machine, findings, measured)
    return int(any(finding.severity == "problem" for finding in findings))


def _print(machine: Machine, findings: list[Finding], measured: Measurement | None) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, value in _rows(machine):
        table.add_row(label, value)
    if measured is not None:
        table.add_row(_("measured"), _speed(measured))
    console = Console(highlight=False)
    console.print(table)
    console.print()
    if not findings:
        console.print(_("Nothing is in the way."))
    for finding in findings:
        if finding.severity == "problem":
            line, colour = _("problem: {message}"), "red"
        else:
            line, colour = _("note: {message}"), None
        text = line.format(message=finding.message)
        # A terminal would break it inside words; a pipe gets it whole.
        console.print(text, style=colour, markup=False, soft_wrap=not console.is_terminal)


def _rows(machine: Machine) -> list[tuple[str, str]]:
    build = machine.torch
    rows = [
        (_("system"), f"{machine.system}, Python {machine.python}"),
        (_("packages"), ", ".join(f"{name} {it}" for name, it in machine.packages.items())),
    ]
    if build.cuda is None:
        rows.append(("torch", _("{version}, without CUDA").format(version=build.version)))
    else:
        rows.append(
            (
                "torch",
                _("{version}, CUDA {cuda}, kernels for {built}").format(
                    version=build.version, cuda=build.cuda, built=" ".join(build.architectures)
                ),
            )
        )
    if machine.driver is not None and machine.driver_cuda is not None:
        known = ".".join(map(str, machine.driver_cuda))
        rows.append(
            (
                _("driver"),
                _("{driver}, CUDA up to {known}").format(driver=machine.driver, known=known),
            )
        )
    for state in machine.cards:
        rows += _card_rows(state)
    if not machine.cards:
        rows.append((_("card"), _("none")))
    rows += [
        (
            _("processor"),
            _("{name}, {cores} cores, {features}").format(
                name=machine.cpu,
                cores=machine.cpu_cores,
                features=" ".join(machine.cpu_features) or "-",
            ),
        ),
        (
            _("memory"),
            _("{free} of {total} available").format(
                free=format_bytes(machine.ram_available_bytes),
                total=format_bytes(machine.ram_bytes),
            ),
        ),
        (
            _("disk"),
            _("{free} free in {path}").format(
                free=format_bytes(machine.disk_free_bytes), path=machine.disk_path
            ),
        ),
    ]
    for name, value in machine.environment.items():
        rows.append((_("setting"), f"{name}={value}"))
    if machine.hub_answers is not None:
        answer = _("answers") if machine.hub_answers else _("does not answer")
        rows.append((_("hub"), f"{machine.hub} {answer}"))
    return rows


def _card_rows(state: CardState) -> list[tuple[str, str]]:
    rows = [
        (
            _("card {index}").format(index=state.index),
            _("{name}, compute capability {capability}, {free} of {total} free").format(
                name=state.name,
                capability=".".join(map(str, state.compute_capability)),
                free=format_bytes(state.free_bytes),
                total=format_bytes(state.total_bytes),
            ),
        )
    ]
    for process in state.processes:
        used = "?" if process.used_bytes is None else format_bytes(process.used_bytes)
        rows.append(("", f"{used}  {process.name} ({process.pid})"))
    if state.measurement is not None:
        rows.append((_("measured"), _speed(state.measurement)))
    return rows


def _speed(measured: Measurement) -> str:
    return _(
        "context {context}, {half:.1f} TFLOP/s in 16 bits, {full:.1f} in fp32, {bandwidth:.0f} GB/s"
    ).format(
        context=format_bytes(measured.context_bytes),
        half=measured.matmul_flops / 1e12,
        full=measured.fp32_flops / 1e12,
        bandwidth=measured.memory_bandwidth / 1e9,
    )
