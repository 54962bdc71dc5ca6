"""Test NRI's bytes: those of real runtimes, in any pieces, and bytes that are no NRI."""

import contextlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.frontends.nri.conversation import NriCall, NriCallError, NriConversation, Reply
from hooks.frontends.nri.sieve import MalformedError
from hooks.frontends.nri.wire import (
    MAX_RECEIVED,
    MAX_SENT,
    PLUGIN,
    RUNTIME,
    MessageKind,
    PieceReader,
    TtrpcMessage,
    render_message,
    render_pieces,
)
from lading.http2.messages import MAX_STATUS_MESSAGE, GrpcStatus
from protos.nri.v1alpha1 import nri_pb2 as nri

GOLDEN = sorted((Path(__file__).parents[4] / "golden/nri").glob("*.bin"))
_OUTSIDE = ["Configure", "Synchronize"]
# 1.7 and 2.1 have no methods for these events.
_EVENTS = [nri.RUN_POD_SANDBOX, nri.STOP_POD_SANDBOX, nri.REMOVE_POD_SANDBOX]


def both_ends() -> tuple[NriConversation, NriConversation]:
    return NriConversation(), NriConversation(answers_on=RUNTIME)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_containerd_sent_is_read(path: Path) -> None:
    plugin = NriConversation()
    plugin.call("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", b"")
    result = list(plugin.receive(path.read_bytes()))
    calls = [one for one in result if isinstance(one, NriCall)]
    assert [one for one in result if isinstance(one, Reply)] == [Reply(stream=1)]
    assert [call.method for call in calls[:3]] == [*_OUTSIDE, "StateChange"]
    configured = nri.ConfigureRequest.FromString(calls[0].payload)
    assert configured.runtime_name == "containerd"
    assert configured.runtime_version.startswith(path.stem.removeprefix("containerd-"))
    changes = [nri.StateChangeEvent.FromString(call.payload) for call in calls if call.method == "StateChange"]
    assert [change.event for change in changes] == _EVENTS
    assert {change.pod.uid for change in changes} == {"11111111-2222-3333-4444-555555555555"}
    assert all(change.pod.annotations["lading.dev/gpus"] == "0" for change in changes)
    (created,) = (nri.ContainerRequest.FromString(call.payload) for call in calls if call.method == "CreateContainer")
    assert (created.pod.name, created.container.name) == ("golden", "main")
    assert "A=b" in created.container.env


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
@given(cuts=st.lists(st.integers(0, 9000)))
def test_where_a_stream_is_cut_makes_no_difference(path: Path, cuts: list[int]) -> None:
    data = path.read_bytes()
    whole, pieces = NriConversation(), NriConversation()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parts = [data[start:end] for start, end in pairwise(edges)]
    assert [one for part in parts for one in pieces.receive(part)] == list(whole.receive(data))


@given(st.binary(max_size=20_000))
def test_a_message_comes_out_as_it_went_in(payload: bytes) -> None:
    plugin, runtime = both_ends()
    number, data = plugin.call("S", "M", payload)
    assert list(runtime.receive(data)) == [NriCall(stream=number, service="S", method="M", payload=payload)]


@given(st.integers(1, 3 * 4096))
def test_the_runtime_can_read_every_piece(length: int) -> None:
    """Check the size of pieces: the runtime reads a header through a buffer of 4096 bytes, and the rest of a message at
    once."""
    first, *rest = PieceReader().feed(render_pieces(PLUGIN, b"x" * length))
    assert len(first[1]) <= 4096
    assert len(rest) <= 1


@given(st.binary(min_size=1, max_size=200))
def test_anything_else_is_malformed_or_incomplete(data: bytes) -> None:
    """Check that no other error occurs; such a connection is closed."""
    with contextlib.suppress(MalformedError):
        list(NriConversation().receive(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (render_pieces(3, b"x"), "connection 3"),
        (render_pieces(PLUGIN, (MAX_RECEIVED + 1).to_bytes(4, "big") + bytes(6)), f"a message of {MAX_RECEIVED + 1} bytes"),
        (render_pieces(PLUGIN, bytes(8) + b"\x03\x00"), "type 3"),
        (render_pieces(PLUGIN, render_message(TtrpcMessage(1, MessageKind.RESPONSE, b""))), "a RESPONSE on connection 1"),
        (render_pieces(RUNTIME, render_message(TtrpcMessage(1, MessageKind.REQUEST, b""))), "a REQUEST on connection 2"),
        (render_pieces(RUNTIME, render_message(TtrpcMessage(1, MessageKind.RESPONSE, b"\xff"))), "an answer of the runtime"),
    ],
)
def test_what_is_no_nri_is_refused_by_name(data: bytes, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        list(NriConversation().receive(data))


@pytest.mark.parametrize("body", [b"\xff", b"\x0b", b"\x1a\x05abc", b"\x0a\x01\xff"])
def test_a_call_that_cannot_be_read_has_a_problem_and_the_next_one_is_read(body: bytes) -> None:
    """Check that the connection stays open: the runtime continues without a plugin that closes it, and creates the
    container."""
    plugin, runtime = both_ends()
    (call,) = plugin.receive(render_pieces(PLUGIN, render_message(TtrpcMessage(1, MessageKind.REQUEST, body))))
    assert isinstance(call, NriCall)
    assert call.problem is not None
    assert call.problem.status == GrpcStatus.INVALID_ARGUMENT
    assert [one.method for one in plugin.receive(runtime.call("S", "M", b"")[1]) if isinstance(one, NriCall)] == ["M"]


def test_a_call_is_answered() -> None:
    plugin, runtime = both_ends()
    number, data = runtime.call("S", "M", b"question")
    (call,) = plugin.receive(data)
    assert call == NriCall(stream=number, service="S", method="M", payload=b"question")
    assert isinstance(call, NriCall)
    assert list(runtime.receive(plugin.answer(call, b"answer"))) == [Reply(stream=number, payload=b"answer")]


def test_a_call_is_refused_with_its_status_and_words() -> None:
    plugin, runtime = both_ends()
    (call,) = plugin.receive(runtime.call("S", "M", b"")[1])
    assert isinstance(call, NriCall)
    (reply,) = runtime.receive(plugin.refuse(call, NriCallError(GrpcStatus.UNAVAILABLE, "later" * 10_000)))
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert reply.error.status == GrpcStatus.UNAVAILABLE
    assert reply.error.message == ("later" * 10_000)[:MAX_STATUS_MESSAGE]


def test_an_answer_that_is_too_large_is_an_error() -> None:
    plugin, runtime = both_ends()
    (call,) = plugin.receive(runtime.call("S", "M", b"")[1])
    assert isinstance(call, NriCall)
    (reply,) = runtime.receive(plugin.answer(call, bytes(MAX_SENT)))
    assert isinstance(reply, Reply)
    assert reply.error is not None
    assert reply.error.status == GrpcStatus.RESOURCE_EXHAUSTED


def test_calls_of_both_sides_have_numbers_of_their_own() -> None:
    plugin, runtime = both_ends()
    assert [plugin.call("S", "M", b"")[0] for _ in range(2)] == [1, 3]
    assert [runtime.call("S", "M", b"")[0] for _ in range(2)] == [1, 3]
