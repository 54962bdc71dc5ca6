"""End the plugin in every way while the runtime asks it: no container lacks its devices, and no card is in two containers.

In each round two pods request one card, and the plugin is lost while the runtime asks about both containers. Then the plugin is
started, and both containers are tried again, as by kubelet, until one has the card and the other is refused. A referee checks
the containers themselves. Each test has one protection only: the guard, the launched guard, the runtime's own validation, or
the runtime handler. `LADING_DEPTH=20` (tests/depth.py) makes twenty rounds of each way.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from hooks.frontends.nri.guard.handler import HANDLER
from hooks.frontends.nri.guard.launched import install, remove
from lading.reasons import Reason
from simnode.containerd import PrivateContainerd
from simnode.containerd_config import validates
from simnode.cri import Container, CriError, Pod
from simnode.daemons import LadingNode
from tests.depth import repeats
from tests.node.conftest import NEWER, StartLading
from tests.node.nri_deaths import DEATHS, Answer, Death
from tests.node.referee import Referee, Verdict
from tests.node.site import Site, eventually, open_site, refusal_of
from tests.node.test_nri import GPU, await_asked, create_within, restart, start

ROUNDS: Final = repeats(1, long=1)
pytestmark = [pytest.mark.node, pytest.mark.repeats, pytest.mark.timeout(300 + 30 * ROUNDS)]

REQUIRED: Final = {"required-plugins.noderesource.dev": '["lading"]'}
VALIDATING: Final = [one for one in NEWER if one is not None and validates(one.version)]
NONE: Final = pytest.param(None, marks=pytest.mark.skip(reason="needs containerd 2.2 or newer in LADING_CONTAINERD_DIRS"))
_NOT_YET: Final = {Reason.UNGRANTED, Reason.NOT_RECONCILED, Reason.NOT_PREPARED}
_VALIDATION: Final = ("validator plugin 50-lading failed", 'required plugin "lading" not present')
_SETTLES_S: Final = 60.0


@pytest.fixture(scope="module")
def running(share_lading: StartLading, newer: PrivateContainerd) -> LadingNode:
    return share_lading(runtime=newer, nri=True)


@pytest.fixture
def site(running: LadingNode, newer: PrivateContainerd) -> Iterator[Site]:
    with open_site(running, newer) as site:
        if not running.guard.running:
            running.guard.start()
        await_asked(site)
        yield site
    eventually(site.check_nothing_granted)


@pytest.fixture
def launched(site: Site, newer: PrivateContainerd, launched_guard: Path) -> Iterator[None]:
    """Start a node with the guard that containerd launched, and no other guard."""
    install(launched_guard, newer.layout.nri / "plugins")
    restart(site, newer)
    site.lading.guard.stop()
    try:
        yield
    finally:
        remove(newer.layout.nri / "plugins")
        newer.restart()
        site.reconnect()


# One round of all ways takes minutes: `make test` tries one way of each kind.
UNLIKE: Final = ("killed while it is asked", "stopped past the time limit", "connection closed while it is asked")
WAYS: Final = DEATHS if ROUNDS > 1 else {way: DEATHS[way] for way in UNLIKE}
every_death = pytest.mark.parametrize("death", WAYS.values(), ids=WAYS)


@every_death
def test_with_the_guard_alone(site: Site, death: Death) -> None:
    play(site, death)


@every_death
@pytest.mark.usefixtures("launched")
def test_with_the_launched_guard_alone(site: Site, death: Death) -> None:
    play(site, death)


@every_death
@pytest.mark.parametrize("newer", VALIDATING or [NONE], indirect=True, ids=lambda result: result.version if result else "none")
def test_with_the_runtimes_validation_alone(site: Site, death: Death) -> None:
    site.lading.guard.stop()
    play(site, death, REQUIRED)


@pytest.mark.parametrize("way", DEATHS if ROUNDS > 1 else UNLIKE[:1])
@pytest.mark.usefixtures("runtime_handler")
def test_with_the_runtime_handler_alone(site: Site, way: str) -> None:
    site.lading.guard.stop()
    play(site, DEATHS[way], handler=HANDLER)


@pytest.mark.usefixtures("runtime_handler")
def test_by_the_runtime_handler_pods_get_what_they_get_by_runc(site: Site) -> None:
    with site.kubelet.pod("train", runtime_handler=HANDLER, annotations={GPU: "0", "lading.dev/vfs": "1"}) as pod:
        sight = site.see(pod.run_container())
        assert (sight.gpus, len(sight.vfs)) == ((site.gpu(0),), 1)
    with site.kubelet.pod("plain", runtime_handler=HANDLER) as pod:
        assert site.see(pod.run_container()).gpus == ()


def test_the_referee_sees_what_is_bare_and_what_two_can_open(site: Site) -> None:
    """Check the invariants themselves: without any protection, kubelet gives the cards itself."""
    site.lading.guard.kill()
    site.lading.hooks.kill()
    with contextlib.ExitStack() as ends:
        pods = [ends.enter_context(site.kubelet.pod(name, annotations={GPU: "0"})) for name in ("one", "two", "three")]
        device = site.supplied(site.card(0))
        first, second = [start(create_within(pod, devices=[device])) for pod in pods[:2]]
        third = start(create_within(pods[2]))
        verdict = Referee(site).judge()
        assert verdict.opened == {first.id: [site.card(0)], second.id: [site.card(0)], third.id: []}
        assert set(verdict.bare) == {first.id, second.id, third.id}
        assert verdict.double == [site.card(0)]
    site.lading.hooks.start()


def play(site: Site, death: Death, annotations: dict[str, str] | None = None, handler: str = "") -> None:
    referee, counts = Referee(site), Counter[str]()
    for number in range(ROUNDS):
        card = str(number % len(site.node.profile.gpus))
        with contextlib.ExitStack() as ends, ThreadPoolExecutor(2) as threads:
            wants = {GPU: card, **(annotations or {})}
            names = (f"one-{number}", f"two-{number}")
            pods = [ends.enter_context(site.kubelet.pod(name, runtime_handler=handler, annotations=wants)) for name in names]

            def ask(pods: list[Pod] = pods, threads: ThreadPoolExecutor = threads) -> list[Future[Answer]]:
                return [threads.submit(create, pod) for pod in pods]

            answers = [one.result() for one in death.die(site.lading, ask)]
            counts.update(map(describe, answers))
            assert not death.answers_nothing or not any(isinstance(one, Container) for one in answers), answers
            check(referee.judge())
            if not site.lading.hooks.running:
                site.lading.hooks.start()
            asked = dict(zip(pods, answers, strict=True))
            settle(asked)
            check(verdict := referee.judge())
            granted = {one.id: [site.card(int(card))] for one in asked.values() if isinstance(one, Container)}
            assert verdict.opened == granted
    print(f"{ROUNDS} rounds:", ", ".join(f"{what} {count}" for what, count in sorted(counts.items())))


def check(verdict: Verdict) -> None:
    assert (verdict.bare, verdict.double) == ([], [])


def create(pod: Pod) -> Answer:
    """Create and start, as kubelet does at once. One that does not start has to go before the next of its name."""
    try:
        container = pod.create_container()
    except CriError as e:
        return e
    try:
        container.start()
    except CriError as e:
        container.remove()
        return e
    return container


def settle(asked: dict[Pod, Answer]) -> None:
    """Ask again about each that was refused, until one has the card and what the plugin says to the others is that."""

    def again() -> None:
        for pod, answer in asked.items():
            if isinstance(answer, CriError):
                asked[pod] = create(pod)
        result = sorted(map(describe, asked.values()))
        assert "granted" in result, result
        assert set(result) <= {"granted", Reason.DEVICE_HELD}, result

    eventually(again, within_s=_SETTLES_S)


def describe(answer: Answer) -> str:
    """Return the reason of a refusal. What else a call can fail with is an error."""
    if isinstance(answer, Container):
        return "granted"
    if any(text in answer.details for text in _VALIDATION):
        return "rejected by the runtime's validation"
    reason = refusal_of(answer).reason
    assert reason in {*_NOT_YET, Reason.DEVICE_HELD}, answer
    return reason
