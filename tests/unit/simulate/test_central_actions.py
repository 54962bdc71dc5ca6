"""Test waiting pods in a replay: priorities, evictions and reservations, compared with queues by hand."""

from dataclasses import replace

import pytest

from central.request.model import Policy
from simulate.departures import replay_departures
from simulate.model import Stay
from simulate.stream import SPANS, Departures, Durations, draw_stream
from simulate.trace import Trace, TraceNode
from tests.unit.simulate.small import share, whole

NODE = TraceNode(name="n", cpu_milli=64_000, memory_mib=262_144, gpus=2, model="T4")
HIGH = 1000


def played(trace: Trace, load: float, *, patience: float = 0.0, policy: Policy = Policy.FRAGMENTATION) -> Stay:
    game = Departures(durations=Durations.EXPONENTIAL, load=load, patience=patience)
    return replay_departures(trace, policy, 42, game)


def waits(stay: Stay, label: str) -> list[float]:
    return sorted(stay.waits[label])


@pytest.mark.parametrize("policy", Policy)
def test_pods_of_the_highest_priority_wait_as_if_there_were_no_others(policy: Policy) -> None:
    """Check that a pod of the highest priority waits for its own kind only. Each of them takes the whole node, so it starts
    when it has arrived and the one before it has ended."""
    trace = Trace(nodes=(NODE,), pods=(replace(whole(2), priority=HIGH), whole(1), share(500)))
    game, span = Departures(durations=Durations.EXPONENTIAL, load=1.2), SPANS[Durations.EXPONENTIAL]
    stay, free_at, by_hand = played(trace, 1.2, policy=policy), 0.0, []
    for at, pod, runs in draw_stream(trace, game, 42):
        if pod.priority:
            starts = max(at, free_at)
            free_at = starts + runs
            if at >= span.warm_up:
                by_hand.append(min(starts, span.end) - at)
    assert waits(stay, "2 GPUs") == pytest.approx(sorted(by_hand))
    assert stay.evicted > 0
    assert max(waits(stay, "1 GPU")) > max(by_hand)


def test_evicted_pods_come_back() -> None:
    trace = Trace(nodes=(NODE,), pods=(replace(whole(2), priority=HIGH), whole(1)))
    game, span = Departures(durations=Durations.EXPONENTIAL, load=0.9), SPANS[Durations.EXPONENTIAL]
    arrived = sum(pod.gpus == 1 and at >= span.warm_up for at, pod, _ in draw_stream(trace, game, 42))
    stay = played(trace, 0.9)
    assert len(stay.waits["1 GPU"]) == arrived + stay.evicted > arrived


def test_pods_of_equal_priority_are_not_evicted() -> None:
    trace = Trace(nodes=(NODE,), pods=(replace(whole(2), priority=HIGH), replace(whole(1), priority=HIGH)))
    plain = Trace(nodes=(NODE,), pods=(whole(2), whole(1)))
    assert played(trace, 1.2).waits == played(plain, 1.2).waits
    assert played(trace, 1.2).evicted == 0


def test_a_stream_of_small_pods_holds_large_ones_up_no_longer_than_the_patience() -> None:
    nodes = tuple(replace(NODE, name=f"n{number}", gpus=4) for number in range(4))
    trace = Trace(nodes=nodes, pods=(whole(4), *[whole(1)] * 40))
    without, with_patience = (played(trace, 1.0, patience=patience) for patience in (0.0, 0.5))
    assert max(waits(with_patience, "4 GPUs")) < max(waits(without, "4 GPUs")) / 2
    assert len(with_patience.waits["4 GPUs"]) == len(without.waits["4 GPUs"])
    assert len(with_patience.waits["1 GPU"]) == len(without.waits["1 GPU"])


def test_the_patience_makes_no_difference_where_no_pod_waits() -> None:
    trace = Trace(nodes=(NODE, replace(NODE, name="m")), pods=(whole(2), whole(1)))
    assert played(trace, 0.02, patience=0.1).waits == played(trace, 0.02).waits
    assert not any(wait for of in played(trace, 0.02).waits.values() for wait in of)


def test_room_for_which_the_cpu_never_suffices_is_not_kept() -> None:
    """Let pods of 4 GPUs request more cpu than any node has: nothing changes for the others."""
    nodes = tuple(replace(NODE, name=f"n{number}", gpus=4) for number in range(2))
    pods = (whole(4, 100_000), *[whole(1)] * 10)
    without, with_patience = (played(Trace(nodes=nodes, pods=pods), 1.0, patience=patience) for patience in (0.0, 0.2))
    assert without.waits == with_patience.waits
