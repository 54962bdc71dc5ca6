import pytest

from lading.reasons import Reason
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.calls import Stage
from runtimeproxy.call.outcome import Answers, CallRefusal
from runtimeproxy.chain.registrations import HideUnassigned, Registration
from runtimeproxy.screening import Screening
from tests.unit.runtimeproxy.requests import golden, goldens

CREATE = Stage.CREATE_CONTAINER
HIDE = HideUnassigned(env={"X": "y"})


def registration(name: str, *prefixes: str, hooks: str = "PreCreateContainer", hide: bool = False) -> Registration:
    return Registration(
        name=name,
        endpoint="/run/h.sock",
        hooks=frozenset(hooks.split()),
        prefixes=prefixes or None,
        hide_unassigned=(HIDE,) if hide else (),
    )


def screening(*registrations: Registration, guarded: tuple[str, ...] = ("lading.dev/",)) -> Screening:
    return Screening(registrations=registrations, guarded_prefixes=guarded)


@pytest.mark.parametrize("name", [*goldens("RunPodSandbox"), *goldens("CreateContainer")])
def test_of_real_requests_those_of_guarded_pods_are_named(name: str) -> None:
    assert screening().mentions_guarded(golden(name)) is ("-plain" not in name)


def test_a_registrations_prefix_names_its_pods_too() -> None:
    assert screening(registration("a", "other.dev/")).mentions_prefix(b"..other.dev/x..")
    assert not screening(registration("a", "other.dev/")).mentions_guarded(b"..other.dev/x..")
    assert not screening(registration("a")).mentions_prefix(b"..other.dev/x..")


def test_without_guarded_prefixes_no_one_is_guarded() -> None:
    assert screening(guarded=()).guarded(["lading.dev/gpus"]) == ()
    assert not screening(guarded=()).concerns(["lading.dev/gpus"])


def test_who_is_asked_and_who_is_told() -> None:
    both = registration("a", "x/", hooks="PreCreateContainer PostCreateContainer")
    every = registration("b")
    of = screening(both, every)
    assert of.adjusters(CREATE, ["x/1"]) == (both, every)
    assert of.adjusters(CREATE, []) == (every,)
    assert of.observers(CREATE, ["x/1"]) == (both,)
    assert of.adjusters(Stage.STOP_CONTAINER, ["x/1"]) == ()


@pytest.mark.parametrize(
    ("of", "stage", "keys", "read"),
    [
        (screening(), CREATE, [], False),
        (screening(), CREATE, ["lading.dev/gpus"], True),
        (screening(registration("a")), Stage.RUN_POD_SANDBOX, [], True),
        (screening(registration("a", "x/", hide=True)), CREATE, [], True),
        (screening(registration("a", "x/", hide=True)), Stage.RUN_POD_SANDBOX, [], False),
    ],
)
def test_what_is_read_whatever_it_contains(of: Screening, stage: Stage, keys: list[str], read: bool) -> None:
    assert of.must_read(stage, lambda: keys) is read


def test_the_first_annotation_that_no_one_claims_is_named() -> None:
    refusal = screening(registration("a", "lading.dev/gpus")).refuse_unclaimed(["lading.dev/gpus", "lading.dev/vfs"])
    assert refusal is not None
    assert refusal.reason == Reason.NO_REGISTRATION
    assert "lading.dev/vfs" in refusal.message


def test_one_of_two_claimants_is_enough() -> None:
    of = screening(registration("a", "lading.dev/"), registration("b", "lading.dev/"))
    down = CallRefusal(reason=Reason.HOOK_UNAVAILABLE, message="down", hook="a")
    adjustment = hook.Adjustment()
    assert of.refuse_unanswered(["lading.dev/x"], Answers(adjustments=(("b", adjustment),), forgiven={"a": down})) is None
    assert of.refuse_unanswered(["lading.dev/x"], Answers(forgiven={"a": down})) is down
    assert of.refuse_unanswered([], Answers(forgiven={"a": down})) is None
