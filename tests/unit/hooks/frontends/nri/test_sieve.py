"""Test that the sieve keeps of a message in parts what protobuf itself reads of the whole message."""

import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.frontends.nri.conversation import NriCall, NriConversation, request_sieve
from hooks.frontends.nri.plugin import PLUGIN_SERVICE
from hooks.frontends.nri.sieve import MAX_KEPT, ExcessError, MalformedError, Sieve
from hooks.frontends.nri.wire import RUNTIME
from protos.nri.v1alpha1 import nri_pb2 as nri

CUTS = st.lists(st.integers(0, 3000))
TEXTS = st.text(max_size=200)
NAMESPACES = st.lists(st.builds(nri.LinuxNamespace, type=st.sampled_from(["network", "pid"]), path=TEXTS), max_size=3)
PODS = st.lists(
    st.builds(
        lambda name, keys, namespaces: nri.PodSandbox(
            id=name, uid=name, annotations=keys, linux=nri.LinuxPodSandbox(namespaces=namespaces)
        ),
        TEXTS,
        st.dictionaries(TEXTS, TEXTS, max_size=3),
        NAMESPACES,
    ),
    max_size=4,
)
CONTAINERS = st.lists(
    st.builds(lambda name, env: nri.Container(id=name, env=env), TEXTS, st.lists(TEXTS, max_size=3)), max_size=4
)


def fed(sieve: Sieve, data: bytes, cuts: Sequence[int] = ()) -> Sieve:
    for start, end in pairwise(sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})):
        sieve.feed(memoryview(data)[start:end])
    return sieve


def envelope(method: str, payload: bytes) -> bytes:
    return nri.TtrpcRequest(service=PLUGIN_SERVICE, method=method, payload=payload).SerializeToString()


@given(st.binary(max_size=2000), st.sampled_from(["CreateContainer", "x", ""]), CUTS)
def test_a_call_is_kept_whole(payload: bytes, method: str, cuts: list[int]) -> None:
    data = envelope(method, payload)
    assert fed(request_sieve(), data, cuts).kept() == data


@given(PODS, CONTAINERS, st.booleans(), CUTS)
def test_of_a_list_the_pods_and_their_namespaces_are_kept(
    pods: list[nri.PodSandbox], containers: list[nri.Container], more: bool, cuts: list[int]
) -> None:
    data = nri.SynchronizeRequest(pods=pods, containers=containers, more=more).SerializeToString()
    request = nri.TtrpcRequest.FromString(fed(request_sieve(), envelope("Synchronize", data), cuts).kept())
    expected = [nri.PodSandbox(id=pod.id, linux=pod.linux) for pod in pods]
    result = nri.SynchronizeRequest.FromString(request.payload)
    assert result == nri.SynchronizeRequest(pods=expected, more=more)


@given(st.binary(max_size=300), CUTS)
def test_what_protobuf_does_not_read_is_malformed(data: bytes, cuts: list[int]) -> None:
    """Check that the readable rest is kept, except for fields that are not needed."""
    sieve = fed(request_sieve(), data, cuts)
    try:
        kept = sieve.kept()
    except MalformedError:
        return
    fields = Sieve({1: bytes, 2: bytes, 3: bytes})
    assert fed(fields, kept).kept() == kept


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\x00", "the tag 0"),
        (b"\x0b", "the tag 11"),
        (b"\x08" + b"\xff" * 10, "64 bits"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "64 bits"),
        (b"\x0a\x02a", "in the middle"),
        (b"\x08", "in the middle"),
    ],
)
def test_damage_is_named(data: bytes, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        fed(request_sieve(), data).kept()


def test_more_than_may_be_kept_is_refused_when_it_is_announced() -> None:
    with pytest.raises(ExcessError):
        fed(request_sieve(), envelope("CreateContainer", bytes(MAX_KEPT))).kept()


def test_a_list_of_any_size_takes_the_memory_of_what_is_kept() -> None:
    """Send a hundred pods of 250 KiB each: 25 MB."""
    pods = [nri.PodSandbox(id=str(number), annotations={"x": "y" * (250 << 10)}) for number in range(100)]
    _, data = NriConversation(answers_on=RUNTIME).call(
        PLUGIN_SERVICE, "Synchronize", nri.SynchronizeRequest(pods=pods).SerializeToString()
    )
    plugin, result = NriConversation(), list[NriCall]()
    tracemalloc.start()
    for at in range(0, len(data), 1 << 16):
        result += [one for one in plugin.receive(data[at : at + (1 << 16)]) if isinstance(one, NriCall)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(nri.SynchronizeRequest.FromString(result[0].payload).pods) == len(pods)
    assert peak < 2 << 20
