"""Test case 9: messages around 4 MiB and 16 MiB, of 80 MiB, output of ExecSync of 16 MiB, compression bombs.

Each call is made twice, without the proxy and through it, with the same result; the proxy's maximum memory is measured. There
are three kinds of calls: forwarded frame by frame; held and forwarded unchanged; held, decoded and changed.

Naive versions that fail: a proxy with gRPC's default limit of 4 MiB; a proxy that decompresses without a limit; a proxy that
copies the remaining bytes for each member of a gzip stream (as Lading did).
"""

import gzip
import hashlib
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from lading.http2.messages import GrpcStatus
from protos.cri.runtime.v1 import api_pb2 as cri
from tests.hostile import raw
from tests.hostile.front import Front
from tests.hostile.measure import MIB, memory_growth, resident_memory
from tests.hostile.runtime import LIMIT

SIZES = (*(middle + off for middle in (4 * MIB, 16 * MIB) for off in (-1, 0, 1)), 80 * MIB)
UNPACKED = (15 * MIB, LIMIT, LIMIT + 1, 64 * MIB)  # bytes of compressed requests after decompression
PASSING, HELD, CHANGED = "EchoOfSize", "RunPodSandbox", "CreateContainer"
GROWTH_PASSING = 24 * MIB  # frames, and what waits for a slow reader
GROWTH_HELD = 256 * MIB  # a message of 16 MiB is kept, read, and written anew
GROWTH_KEPT = 96 * MIB  # after messages were sent: what is known of pods, and what the allocator has not given back
AT_ONCE = 40  # large messages
NO_MESSAGE = b"\xff" * (15 * MIB)

KUBELET = [("grpc.max_receive_message_length", LIMIT), ("grpc.max_send_message_length", -1)]
PATIENT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Outcome = tuple[grpc.StatusCode, int, str]


class Caller:
    """Make the same calls without the proxy and through it."""

    def __init__(self, front: Front, options: list[tuple[str, int]]) -> None:
        local = ("grpc.use_local_subchannel_pool", 1)
        self._front = front
        self._direct, self._through = (
            grpc.insecure_channel(f"unix:{path}", options=[*options, local])
            for path in (front.runtime.path, front.lading.cri_socket)
        )

    def close(self) -> None:
        self._direct.close()
        self._through.close()

    def both(
        self, method: str, request: bytes, *, compressed: bool = False, growth: int = GROWTH_PASSING
    ) -> tuple[Outcome, Outcome]:
        compression = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
        direct = _outcome(self._direct, method, request, compression)
        with memory_growth(self._front.lading.proxy.pid) as grown:
            through = _outcome(self._through, method, request, compression)
        assert grown.bytes < growth
        return direct, through


def _outcome(channel: grpc.Channel, method: str, request: bytes, compression: grpc.Compression) -> Outcome:
    rpc = channel.unary_unary(f"/runtime.v1.RuntimeService/{method}", bytes, bytes)
    try:
        reply = rpc(request, timeout=20, compression=compression)
    except grpc.RpcError as e:
        return e.code(), 0, ""
    # ids are new each time; what is echoed or scripted is not
    made = method in {HELD, CHANGED}
    return grpc.StatusCode.OK, len(reply), "" if made else digest(reply)


def digest(content: bytes) -> str:
    """Return a hash, so that a failing test does not print megabytes."""
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def kubelet(by_hand: Front) -> Iterator[Caller]:
    caller = Caller(by_hand, KUBELET)
    by_hand.runtime.asked.clear()  # drop calls of tests in other modules
    yield caller
    caller.close()
    by_hand.runtime.sandboxes.clear()
    by_hand.runtime.containers.clear()
    by_hand.runtime.asked.clear()
    by_hand.runtime.scripted.clear()


@pytest.fixture
def patient(by_hand: Front) -> Iterator[Caller]:
    caller = Caller(by_hand, PATIENT)
    yield caller
    caller.close()
    by_hand.runtime.scripted.clear()


def request_of(front: Front, method: str, size: int) -> bytes:
    """Return a request of exactly this size that the runtime accepts."""
    match method:
        case "RunPodSandbox":
            message: cri.RunPodSandboxRequest | cri.CreateContainerRequest = cri.RunPodSandboxRequest()
            message.config.annotations["fill"] = ""
        case "CreateContainer":
            front.runtime.sandboxes["s"] = cri.PodSandbox(id="s")
            message = cri.CreateContainerRequest(pod_sandbox_id="s")
            message.sandbox_config.metadata.name = "p"
            message.config.annotations["fill"] = ""
        case _:
            return b"x" * size
    config = message.config
    for _ in range(4):  # the lengths before it take bytes too
        config.annotations["fill"] = "x" * (len(config.annotations["fill"]) + size - message.ByteSize())
    assert message.ByteSize() == size
    return message.SerializeToString()


@pytest.mark.parametrize("method", [PASSING, HELD])
@pytest.mark.parametrize(("size", "compressed"), [*((size, False) for size in SIZES), *((size, True) for size in UNPACKED)])
def test_requests(by_hand: Front, kubelet: Caller, method: str, size: int, compressed: bool) -> None:
    request = request_of(by_hand, method, size)
    growth = GROWTH_PASSING if method == PASSING else GROWTH_HELD
    direct, through = kubelet.both(method, request, compressed=compressed, growth=growth)
    assert through == direct
    assert (direct[0] is grpc.StatusCode.OK) is (size <= LIMIT)
    if size <= LIMIT and method == HELD:
        assert [*map(digest, by_hand.runtime.requests(HELD))] == [digest(request)] * 2


@pytest.mark.parametrize("size", SIZES[:-1])
def test_requests_that_are_changed(by_hand: Front, kubelet: Caller, size: int) -> None:
    """Check requests near the runtime's limit: hiding cards adds a variable, and the runtime's refusal reaches the caller."""
    direct, through = kubelet.both(CHANGED, request_of(by_hand, CHANGED, size), growth=GROWTH_HELD)
    if LIMIT - 100 < size <= LIMIT:
        assert (direct[0], through[0]) == (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)
    else:
        assert through == direct
    if size <= LIMIT - 100:
        fills = [cri.CreateContainerRequest.FromString(r).config.annotations["fill"] for r in by_hand.runtime.requests(CHANGED)]
        assert fills[0] == fills[1]


@pytest.mark.parametrize(("method", "size"), [*(("ListContainerStats", size) for size in SIZES), ("ExecSync", LIMIT + 5)])
def test_replies(by_hand: Front, kubelet: Caller, patient: Caller, method: str, size: int) -> None:
    """Use methods that the daemons do not call: the proxy lists sandboxes and containers once a minute."""
    by_hand.runtime.scripted[method] = b"\x0a\x00" * (size // 2) + b"\x00" * (size % 2)
    for caller, taken in ((kubelet, size <= LIMIT), (patient, True)):
        direct, through = caller.both(method, b"")
        assert through == direct
        assert direct[0] is (grpc.StatusCode.OK if taken else grpc.StatusCode.RESOURCE_EXHAUSTED)


# Bombs


def test_many_large_requests_at_once(by_hand: Front) -> None:
    """Check that large held messages wait for the budget, and that their memory is returned to the kernel."""
    proxy = by_hand.lading.proxy.pid
    before = resident_memory(proxy)
    with memory_growth(proxy) as growth, ThreadPoolExecutor(AT_ONCE) as threads:
        outcomes = list(threads.map(lambda _: _refused_at(by_hand.lading.cri_socket), range(AT_ONCE)))
    print(f"measured: {growth.bytes // MIB} MiB more at the highest, {(resident_memory(proxy) - before) // MIB} after")
    assert len(outcomes) == AT_ONCE
    assert growth.bytes < GROWTH_HELD
    assert resident_memory(proxy) - before < GROWTH_KEPT


def _refused_at(path: Path) -> grpc.StatusCode:
    """Send 15 MiB that are no CreateContainer: the proxy has to hold them all before it can tell."""
    with grpc.insecure_channel(f"unix:{path}", options=[*KUBELET, ("grpc.use_local_subchannel_pool", 1)]) as channel:
        return _outcome(channel, CHANGED, NO_MESSAGE, grpc.Compression.NoCompression)[0]


def bomb(mebibytes: int) -> bytes:
    """Return a gzip stream without compressing all of it: after a full flush equal compressed bytes have equal content."""
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    block = deflate.compress(bytes(MIB)) + deflate.flush(zlib.Z_FULL_FLUSH)
    checksum = 0
    for _ in range(mebibytes):
        checksum = zlib.crc32(bytes(MIB), checksum)
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    end = b"\x03\0" + checksum.to_bytes(4, "little") + (mebibytes * MIB).to_bytes(4, "little")
    return header + block * mebibytes + end


@pytest.mark.parametrize(
    ("content", "status"),
    [
        pytest.param(lambda: bomb(500), GrpcStatus.RESOURCE_EXHAUSTED, id="500 KB that are 500 MB"),
        pytest.param(lambda: gzip.compress(b"") * 200_000, GrpcStatus.INTERNAL, id="empty members"),
        pytest.param(lambda: gzip.compress(bytes(1000)) * 16_000, GrpcStatus.INTERNAL, id="small members"),
    ],
)
def test_a_gzip_bomb(by_hand: Front, content: Callable[[], bytes], status: GrpcStatus) -> None:
    """Check content that unpacks to too much, or has many members; while it is unpacked, no other client is served."""
    request, path = content(), by_hand.lading.cri_socket
    began = time.monotonic()
    with memory_growth(by_hand.lading.proxy.pid) as growth:
        answer = raw.call(path, f"/runtime.v1.RuntimeService/{HELD}", request, flag=1, headers=[(b"grpc-encoding", b"gzip")])
    assert answer.status == status
    assert time.monotonic() - began < 2.0
    assert growth.bytes < GROWTH_HELD
