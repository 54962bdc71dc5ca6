"""Render the result of `kubectl lading why`: a struct for programs, and text for people. Pure.

Tests: tests/golden/cli/test_look.py
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_lading.pods.given import Given
from kubectl_lading.pods.situation import PodRefusal, Situation
from kubectl_lading.terminal.output import indented, pairs, text, under

if TYPE_CHECKING:  # the scheduler takes most of a second to import, and few answers have a Wait
    from kubectl_lading.pods.waiting import Wait


class WhyView(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    name: str
    uid: str
    situation: Situation
    deleting: bool = False
    devices: Mapping[str, Given] = {}  # devices in the pod's assignment, by container
    wait: "Wait | None" = None


def draw(answer: WhyView) -> RenderableType:
    """Return the text about a pod that does not wait for devices."""
    return Group(*_lines(answer))


def _lines(answer: WhyView) -> Iterator[RenderableType]:
    situation = answer.situation
    yield head(answer)
    yield from given(answer)
    for refusal in situation.refusals:
        yield from _refusal(refusal)
    if situation.waits_for:
        yield text("")
        yield from (indented(text(one)) for one in situation.waits_for)
    if situation.scheduler_says:
        yield pairs(kube_scheduler(situation))
    yield from hint(situation)


def head(answer: WhyView, since: str = "") -> Text:
    ending = "; it is being deleted" if answer.deleting else ""
    return text(f"{answer.namespace}/{answer.name} {answer.situation.said}{since}{ending}.", "head")


def given(answer: WhyView) -> Iterator[RenderableType]:
    if answer.devices:
        yield pairs([pair for name, given in answer.devices.items() for pair in under(name, given.as_text())])


def hint(situation: Situation) -> Iterator[RenderableType]:
    if situation.hint:
        yield text("")
        yield pairs([("hint", text(situation.hint))])


def kube_scheduler(situation: Situation) -> list[tuple[str, Text]]:
    return [("kube-scheduler", text(situation.scheduler_says))] if situation.scheduler_says else []


def _refusal(refusal: PodRefusal) -> Iterator[RenderableType]:
    yield text("")
    where = f"container {refusal.container}: " if refusal.container else ""
    times = f" ({refusal.times} times)" if refusal.times > 1 else ""
    yield Text.assemble(text(where), text(refusal.code, "bad"), text(times, "dim"))
    yield pairs([("why", text(refusal.message)), ("do", text(refusal.fix))])
