import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.cri.runtime.v1 import api_pb2 as cri
from runtimeproxy.call.calls import METHODS, Stage, held_paths, read_id
from runtimeproxy.chain.registrations import Registration
from tests.unit.runtimeproxy.requests import golden, goldens

V1 = "/runtime.v1.RuntimeService/"
ALWAYS = {"RunPodSandbox", "CreateContainer", "RemovePodSandbox", "RemoveContainer", "RestorePod"}


def registration(*hooks: str) -> Registration:
    return Registration(name="10.json", endpoint="/run/h.sock", hooks=frozenset(hooks))


def names(paths: frozenset[bytes], prefix: str = V1) -> set[str]:
    return {path.decode().removeprefix(prefix) for path in paths if path.startswith(prefix.encode())}


def test_both_versions_of_cri_have_every_stage() -> None:
    for version in ("v1", "v1alpha2"):
        stages = {METHODS[f"/runtime.{version}.RuntimeService/{stage.value}".encode()].stage for stage in Stage}
        assert stages == set(Stage)


def test_only_stop_and_remove_are_teardown() -> None:
    assert {m.name for m in METHODS.values() if m.teardown} == {
        "StopPodSandbox",
        "RemovePodSandbox",
        "StopContainer",
        "RemoveContainer",
    }


def test_guarding_holds_what_makes_and_what_forgets_without_any_registration() -> None:
    paths = held_paths((), guarded=True)
    assert names(paths) == ALWAYS
    assert names(paths, "/runtime.v1alpha2.RuntimeService/") == ALWAYS


def test_nothing_is_held_for_no_one() -> None:
    assert held_paths((), guarded=False) == frozenset()


@pytest.mark.parametrize("point", ["PreStartContainer", "PostStartContainer"])
def test_another_stage_is_held_once_someone_asks(point: str) -> None:
    assert names(held_paths([registration(point)], guarded=False)) == ALWAYS | {"StartContainer"}


@pytest.mark.parametrize("name", [n for s in Stage for n in goldens(s.value) if s is not Stage.RUN_POD_SANDBOX])
def test_read_id_reads_what_a_parser_reads(name: str) -> None:
    message = golden(name)
    request = METHODS[f"{V1}{name.partition('-')[0]}".encode()].parse(message)
    _, first = request.ListFields()[0]
    assert read_id(message) == first


def test_read_id_takes_the_last_of_two_and_looks_behind_other_fields() -> None:
    head = cri.StopContainerRequest(container_id="old", timeout=1 << 40).SerializeToString()
    assert read_id(head + cri.StopContainerRequest(container_id="new").SerializeToString()) == "new"
    assert read_id(b"\x11" + b"\0" * 8 + b"\x1d" + b"\0" * 4 + b"\x0a\x01x") == "x"


@pytest.mark.parametrize("message", [b"", b"\x0a\x05ab", b"\x0a", b"\x0a\xff", b"\x0b", b"\xff" * 20, b"\x0a\x01x\x11\0"])
def test_read_id_of_a_damaged_message_is_empty(message: bytes) -> None:
    assert read_id(message) == ""


def test_read_id_gives_up_on_a_message_of_countless_fields() -> None:
    assert read_id(b"\x0a\x01x" + b"\x10\x01" * (1 << 19)) == ""


@given(st.binary(max_size=64))
def test_read_id_never_raises(message: bytes) -> None:
    assert isinstance(read_id(message), str)
