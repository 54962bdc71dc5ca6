"""Render the result of `kubectl lading pod` as text for people. Pure, except that the age of Events needs the clock.

Tests: tests/golden/cli/test_look.py
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from kubectl_lading.pods.given import GivenGpu
from kubectl_lading.pods.pod_report import ContainerReport, PodReport, ReportedEvent, Signature, SignatureState
from kubectl_lading.pods.situation import Stand
from kubectl_lading.terminal.format import NONE, age, count, short_bdf, short_uuid
from kubectl_lading.terminal.output import Cell, facts, now, table, text

MOST_PAIRS: Final = 12  # maximum pairs of devices shown for one container; of more, only counts by distance are shown
_STANDS: Final = {Stand.RUNNING: "good", Stand.REFUSED: "bad", Stand.MALFORMED: "bad"}
_SIGNED: Final = {
    SignatureState.ABSENT: ("not signed", "warn"),
    SignatureState.MALFORMED: ("the signature cannot be read", "bad"),
    SignatureState.UNCHECKED: ("signed by key {key_id}; not checked here (--public-key {key_id}=FILE)", ""),
    SignatureState.VALID: ("signed by key {key_id}, and that is right", "good"),
    SignatureState.INVALID: ("the signature is not of key {key_id}: it was not made with that key", "bad"),
}


def draw_pod(report: PodReport, *, wide: bool) -> Iterator[RenderableType]:
    name = text(f"{report.namespace}/{report.name}", "head")
    yield Text.assemble(name, "  ", text(report.said, _STANDS.get(report.stand, "")))
    yield facts(_facts(report))
    if report.containers:
        yield Text()
        heads = ("CONTAINER", "DEVICE", "AT", "ASSIGNED", "GRANTED")
        yield table(heads, [row for one in report.containers for row in _rows(one, wide=wide)])
    distances = [row for one in report.containers for row in _distances(one, wide=wide)]
    if distances:
        yield Text()
        yield table(("CONTAINER", "BETWEEN", "DISTANCE"), distances)
    if report.events:
        yield Text()
        yield table(("AGE", "TYPE", "REASON", "FROM", "MESSAGE"), [_event(one) for one in report.events])
    if report.stand not in (Stand.RUNNING, Stand.ENDED, Stand.NO_DEVICES):
        yield Text()
        yield text(f"What it needs: kubectl lading why {report.name} -n {report.namespace}")


def _facts(report: PodReport) -> Iterator[tuple[str, str | Text]]:
    yield "asks", report.asks or ("the devices below, by hand" if report.by_hand else "for no device of lading.dev/")
    for key, value in report.by_hand.items():
        yield (
            key,
            text(f"{value}   ! the pod has no such container: it gives nothing", "bad")
            if key in report.without_effect
            else value,
        )
    if report.signature is not None:
        gen = f"generation {report.gen}, " if report.gen is not None else ""
        yield "assignment", Text.assemble(text(gen), _signature(report.signature))
        if report.problem:
            yield "", text(f"! {report.problem}", "bad")
    if not report.reported and report.node:
        yield "granted", text(f"node {report.node} reports nothing, so this is unknown", "warn")
    if report.healthy:
        yield "healthy", text(f"{report.healthy}: {report.healthy_said}", "good" if report.healthy == "True" else "bad")


def _signature(signature: Signature) -> Text:
    message, style = _SIGNED[signature.state]
    return text(message.format(key_id=signature.key_id), style)


# ---- devices


def _rows(one: ContainerReport, *, wide: bool) -> Iterator[tuple[Cell, ...]]:
    name = one.name
    assigned = {gpu.mig or gpu.uuid: gpu for gpu in one.gpus}
    granted = {gpu.mig or gpu.uuid: gpu for gpu in one.granted_gpus}
    for device in dict.fromkeys((*assigned, *granted)):
        gpu = assigned.get(device) or granted[device]
        shown = device if wide else short_uuid(device)
        yield (
            name,
            shown,
            short_bdf(gpu.bdf),
            _amount(assigned.get(device)),
            _compared(assigned.get(device), granted.get(device)),
        )
        name = ""
    for bdf in dict.fromkeys((*one.vfs, *one.granted_vfs)):
        ifname = f"as {one.ifnames[bdf]}" if bdf in one.ifnames else NONE
        granted_too = text("yes", "good") if bdf in one.granted_vfs else text(NONE, "warn")
        yield name, "VF", short_bdf(bdf), ifname, granted_too
        name = ""


def _amount(gpu: GivenGpu | None) -> str:
    return NONE if gpu is None else ", ".join((*gpu.share, *gpu.kept_by)) or "whole"


def _compared(assigned: GivenGpu | None, granted: GivenGpu | None) -> Text:
    if granted is None:
        return text(NONE, "warn")
    if assigned is None or _amount(assigned) != _amount(granted):
        return text(_amount(granted), "warn")
    return text("yes", "good")


def _distances(one: ContainerReport, *, wide: bool) -> Iterator[tuple[Cell, ...]]:
    name = one.name
    if len(one.pairs) <= MOST_PAIRS or wide:
        for pair in one.pairs:
            yield name, f"{_short(pair.one)} and {_short(pair.other)}", pair.said
            name = ""
        return
    kinds = Counter(("GPU" if _is_gpu(pair.other) else "VF", pair.said) for pair in one.pairs)
    for (kind, message), number in sorted(kinds.items()):
        yield name, f"{count(number, 'pair')} of GPU and {kind}", message
        name = ""


def _is_gpu(device: str) -> bool:
    return device.startswith("GPU-")


def _short(device: str) -> str:
    return short_uuid(device) if _is_gpu(device) else f"VF {short_bdf(device)}"


# ---- Events and conditions


def _event(event: ReportedEvent) -> tuple[Cell, ...]:
    ago = age(now() - datetime.fromisoformat(event.last).timestamp()) if event.last else NONE
    times = f" (x{event.times})" if event.times > 1 else ""
    kind = text(event.type, "warn" if event.type == "Warning" else "")
    return f"{ago}{times}", kind, event.reason, event.source or NONE, event.message
