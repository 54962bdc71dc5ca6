"""Check that no pending pod is forgotten, with pods that are created, refused and deleted in any order.

One scan has time for a single node or request. At the end every refused pod that fits on a node was requeued since its refusal.
The fit itself decides which pods fit."""

from collections.abc import Sequence
from itertools import count
from unittest.mock import AsyncMock, patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.controllers.requeue import Requeuer
from central.decide.scheduler import PREDICTION_S, Reservation
from central.ledger.model import Claim
from central.request.model import Policy
from central.search.placement import Placement
from lading.vocabulary import ASSIGNMENT, PodUid
from tests.depth import repeats
from tests.fakes.kube_objects import WHOLE, share
from tests.fakes.simulated_time import run_simulated
from tests.unit.central.world import World, uid_of

NODES = ("n1", "n2", "n3")
SCANS = 60  # more than there can be nodes and asks to judge, and turns to take

shapes = st.sampled_from([WHOLE, {"lading.dev/gpu": "2"}, share("30Gi"), share("50Gi"), share("70Gi", 60)])
labels = st.dictionaries(st.sampled_from(["affinity", "anti-affinity", "exclusion"]), st.sampled_from("xy"), max_size=2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), shapes, labels, st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("look"), st.booleans()),
        st.tuples(st.just("expire")),
    ),
    min_size=8,
    max_size=40,
)


class Story:
    def __init__(self, policy: Policy) -> None:
        self.world = World(policy=policy)
        for node in NODES:
            self.world.node(node, 2)
        seconds = count()  # each look at the clock is one later
        self.waker = Requeuer(self.world.scheduler, AsyncMock(), clock=lambda: float(next(seconds)), log=self.world.records.log)
        self.requested: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        self.bound: list[str] = []
        self.requeued: set[PodUid] = set()

    def create(self, limits: dict[str, str], text: dict[str, str], binds: bool) -> None:
        name = f"p{len(self.requested)}"
        is_share = not limits.keys() & WHOLE.keys()
        annotations = {f"lading.dev/share-{rule}": label for rule, label in text.items()} if is_share else {}
        self.requested[name] = limits, annotations
        self.world.show(name, limits, annotations=annotations)
        self.filter(name, binds=binds)

    def filter(self, name: str, *, binds: bool) -> None:
        """Filter the pod as kube-scheduler does, and bind it if `binds`."""
        self.requeued.discard(uid_of(name))
        self.world.filter(name, *NODES)
        claim = self.world.ledger.own_claim(uid_of(name), Claim.PREDICTED)
        if claim is None or not binds:
            return
        reserved = self.world.scheduler.reserve(uid_of(name), claim.node)
        assert isinstance(reserved, Reservation)
        self.world.scheduler.confirm(reserved)
        limits, annotations = self.requested[name]
        self.world.show(name, limits, node=claim.node, annotations={**annotations, ASSIGNMENT: reserved.assignment})
        self.bound.append(name)

    def end(self, number: int) -> None:
        if self.bound:
            self.world.deleted(self.bound.pop(number % len(self.bound)))

    def scan(self, *, tries: bool) -> None:
        """Run one scan. `tries`: kube-scheduler tries the requeued pods at once."""
        for pod in run_simulated(self.waker.scan()):
            self.requeued.add(pod.uid)
            if tries:
                self.filter(pod.name, binds=True)

    def expire(self) -> None:
        self.world.now += PREDICTION_S
        self.world.ledger.expire(self.world.now)

    def forgotten(self) -> list[str]:
        scheduler = self.world.scheduler
        return [
            pod.name
            for pod in self.world.pending
            if pod.refused_at is not None
            and pod.uid not in self.requeued
            and any(isinstance(scheduler.verdict(pod.request, node, scheduler.ledger.without()), Placement) for node in NODES)
        ]


@pytest.mark.repeats
@settings(max_examples=repeats(20, long=500), deadline=None)
@given(steps, st.sampled_from([Policy.BINPACK, Policy.FRAGMENTATION]), st.sampled_from([1, 256]))
def test_who_fits_is_requeued_at_last(said: Sequence[tuple[object, ...]], policy: Policy, kept: int) -> None:
    with patch("central.rank.verdicts.REMEMBERED", kept):
        story = Story(policy)
        for step in said:
            match step:
                case ("create", dict(limits), dict(rules), bool(binds)):
                    story.create(limits, rules, binds)
                case ("end", int(number)):
                    story.end(number)
                case ("look", bool(tries)):
                    story.scan(tries=tries)
                case _:
                    story.expire()
        for _ in range(SCANS):
            story.scan(tries=False)
        assert story.forgotten() == []
