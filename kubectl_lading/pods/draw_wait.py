"""Render why a pod waits for devices: what each node lacks, and what would help. Pure.

The text names only the nodes that lack the least, and a few of the pods whose end would help; with -o wide, all of them.

Tests: tests/golden/cli/test_look.py
"""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from central.decide.why_pod import FITS, NodeWhy
from central.view.helps import NodeHelp
from central.view.model import Ending
from kubectl_lading.pods.draw_why import WhyView, given, head, hint, kube_scheduler
from kubectl_lading.pods.waiting import NEVER, SENTENCES, Wait
from kubectl_lading.terminal.format import age, count, gib, listed, pod_name
from kubectl_lading.terminal.output import of_nodes, pairs, text

MOST_NODES: Final = 4  # maximum rows of nodes for one reason
MOST_SETS: Final = 2  # maximum sets of pods whose end would suffice, for one node
MOST_PODS: Final = 4  # maximum pods named in one list
_MANY: Final = 1 << 30


def draw_waiting_pod(answer: WhyView, wait: Wait, *, wide: bool) -> RenderableType:
    return Group(*_lines(answer, wait, wide))


def _lines(answer: WhyView, wait: Wait, wide: bool) -> Iterator[RenderableType]:
    yield head(answer, "" if wait.why.refused_s is None else f", refused for {age(wait.why.refused_s)}")
    yield pairs([("asks", text(wait.why.asks)), *kube_scheduler(answer.situation), *_state(wait)])
    yield from given(answer)
    yield from _nodes_by_reason(wait, wide)
    yield from _what_would_help(wait)
    yield from hint(answer.situation)


def _state(wait: Wait) -> Iterator[tuple[str, Text]]:
    if wait.why.state == "reserved":
        yield "now", text(f"its devices are reserved on node {wait.why.node}, and it is being bound", "good")
    if wait.why.gang is not None:
        yield "gang", text(wait.why.gang.as_text(), "warn")
    if wait.why.quota:
        yield "now", text(f"its quota refuses it, on every node: {wait.why.quota}", "warn")
    if wait.why.line is not None:
        yield "line", text(wait.why.line.as_text())
    if wait.why.making_room_on:
        yield "now", text(f"central evicts pods of lower priority on node {wait.why.making_room_on} for it", "good")
    if wait.why.keeping_room_on:
        kept = f"central keeps for it what is free, and what becomes free, on node {wait.why.keeping_room_on}"
        yield "now", text(f"it waited for long: {kept}", "good")


# ---- what each node lacks


def _nodes_by_reason(wait: Wait, wide: bool) -> Iterator[RenderableType]:
    if not wait.why.nodes:
        yield text("")
        yield text(wait.next_step or "No node reports devices.", "warn")
    for reason in _in_order(wait):
        of_it = [node for node in wait.why.nodes if node.reason == reason]
        yield text("")
        yield _head(reason, len(of_it))
        if reason in wait.fixes:
            yield pairs([("do", text(wait.fixes[reason]))])
        yield _table(wait, _nearest_first(wait, of_it), wide)


def _in_order(wait: Wait) -> list[str]:
    """Order the reasons: fits, may fit later, never fits; within each of these, nodes where the fewest pods have to end come
    first."""
    together = {one.node: one.together for one in wait.helps if one.together}
    fewest: dict[str, int] = {}
    for node in wait.why.nodes:
        if node.node in together:
            fewest[node.reason] = min(together[node.node], fewest.get(node.reason, _MANY))

    def key(reason: str) -> tuple[bool, bool, int, int]:
        return reason != FITS, reason in NEVER, fewest.get(reason, _MANY), -wait.why.reasons[reason]

    return sorted(wait.why.reasons, key=key)


def _nearest_first(wait: Wait, nodes: Sequence[NodeWhy]) -> list[NodeWhy]:
    place = {one.node: (one.together or _MANY, n) for n, one in enumerate(wait.helps)}
    return sorted(nodes, key=lambda node: (place.get(node.node, (_MANY, len(place))), node.node))


def _head(reason: str, nodes: int) -> Text:
    style = "good" if reason == FITS else "bad" if reason in NEVER else "warn"
    return Text.assemble(
        text(f"{count(nodes, 'node')}: "), text(SENTENCES.get(reason, reason), style), text(f" ({reason})", "dim")
    )


def _table(wait: Wait, nodes: Sequence[NodeWhy], wide: bool) -> RenderableType:
    """Return the table of one reason's nodes; nodes with the same text share a row."""
    rows: dict[tuple[str, tuple[str, str]], list[str]] = {}
    for node in nodes:
        rows.setdefault((node.detail, _ends_as_text(wait.help_on(node.node), wide)), []).append(node.node)
    shown = list(rows.items()) if wide else list(rows.items())[:MOST_NODES]
    made: list[tuple[str, Text]] = []
    for (detail, (ends, style)), names in shown:
        message = [text(detail)] if detail or not ends else []
        made += of_nodes(names, [*message, *([text(ends, style)] if ends else [])], wide=wide)
    left = sum(len(names) for names in rows.values()) - sum(len(names) for _, names in shown)
    if left:
        made.append((f"and {left} more", text("-o wide names all nodes", "dim")))
    return pairs(made, style="")


def _ends_as_text(node_help: NodeHelp | None, wide: bool) -> tuple[str, str]:
    """Return a text about the pods whose end would help on the node, and its style."""
    if node_help is None or not (node_help.together or node_help.stay):
        return "", ""
    if node_help.stay:
        return f"held by pods of DaemonSets, or static ones, which do not end: {_listed(node_help.stay, wide)}", "warn"
    return _fits_when(node_help, wide), "good"


def _fits_when(node_help: NodeHelp, wide: bool) -> str:
    if node_help.any_of:
        of = len(node_help.any_of)
        number = "one" if node_help.together == 1 else f"any {node_help.together}"
        return f"fits when {number} of these {of} end{'s' * (node_help.together == 1)}: {_listed(node_help.any_of, wide)}"
    sets = node_help.sets if wide else node_help.sets[:MOST_SETS]
    left = node_help.more + len(node_help.sets) - len(sets)
    more = f"; or {left} other sets" if left > 1 else "; or one other set" if left else ""
    if node_help.together == 1:
        return f"fits when {_ending(sets[0][0])} ends"
    return f"fits when these {node_help.together} end: {'; or '.join(_listed(one, wide) for one in sets)}{more}"


def _listed(pods: Sequence[Ending], wide: bool) -> str:
    most = len(pods) if wide or len(pods) <= MOST_PODS else MOST_PODS - 1
    return listed([*map(_ending, pods)], most)


def _ending(one: Ending) -> str:
    return pod_name(one) + (" (is ending)" if one.deleting else "")


# ---- what would help


def _what_would_help(wait: Wait) -> Iterator[RenderableType]:
    message = list(_helps(wait))
    if message:
        yield text("")
        yield pairs(message)


def _helps(wait: Wait) -> Iterator[tuple[str, Text]]:
    if wait.scattered:
        most = max(wait.scattered, key=lambda one: one.free_mib)
        nodes = f"{count(len(wait.scattered), 'node')} {'has' if len(wait.scattered) == 1 else 'have'} enough memory free"
        yield "memory", text(f"{nodes}, but on several cards: {most.node} has {gib(most.free_mib)} on {most.cards} cards")
    if wait.why.preempts:
        yield "preemption", text(f"evicts {wait.why.preempts}")
    elif wait.preemption is not None:
        yield "preemption", text(wait.preemption.as_text())
    for reason, pods in wait.why.protected.items():
        yield "protected", text(f"{count(pods, 'pod')} of lower priority: {reason}")
    some_would = any(one.together for one in wait.helps) or wait.not_looked_at
    if some_would and not wait.why.reasons.get(FITS):
        yield "moves", text("kubectl lading defrag says which pods could go elsewhere to make room")
    if wait.not_looked_at:
        yield "not tried", text(f"whose end would help on {count(wait.not_looked_at, 'node')} more: -o wide")
