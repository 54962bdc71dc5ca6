"""The answer of a runtime to one call, as values. The caller sends it as metadata, so that both ways ask for the same answer.

It takes a `Script`. It returns the metadata that carry it, and the metadata of the runtime's answer, which repeat what the
runtime was sent, in its order. A call without a script is the proxy's own question.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from protos.cri.runtime.v1 import api_pb2 as cri
from tests.faults.rig import GUARDED

Metadata = tuple[tuple[str, str | bytes], ...]

_KEY: Final = "lading-test-script"
_TAG: Final = "lading-test-tag"  # differs from call to call
# Bytes that are no text, no UTF-8, and none.
BINARY: Final = bytes(range(256))
SENT: Final[Metadata] = (
    ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
    ("x-twice", "a"),
    ("x-binary-bin", BINARY),
    ("x-twice", "b"),
    ("x-empty", ""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    replies: int = 1
    size: int = 0  # bytes of each reply; 0: the reply is the request
    code: str = "OK"
    details: str = ""
    gzip: bool = False  # the replies
    waits_after: int = -1  # so many replies; then nothing more comes until the runtime's `go_on`; -1: does not wait


def metadata_of(script: Script, tag: str = "") -> Metadata:
    """`tag`: by which a test asks the runtime about this call."""
    return (*SENT, (_KEY, json.dumps(asdict(script))), (_TAG, tag))


def script_of(metadata: Iterable[tuple[str, str | bytes]]) -> Script | None:
    found = dict(metadata).get(_KEY)
    return Script(**json.loads(found)) if found is not None else None


def tag_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    return str(dict(metadata)[_TAG])


def initial_of(metadata: Iterable[tuple[str, str | bytes]]) -> Metadata:
    """All that the runtime was sent, but for the tag, is in `x-saw-bin`."""
    saw = repr([(key, value) for key, value in metadata if key != _TAG]).encode()
    return (("x-initial", "a"), ("x-saw-bin", saw), ("x-initial", "b"), ("x-initial-bin", BINARY))


def trailing_of(script: Script) -> Metadata:
    trailing: Metadata = (("x-trailing", "a"), ("x-trailing-bin", BINARY), ("x-trailing", "b"))
    return trailing if script.code == "OK" else (*trailing, ("grpc-status-details-bin", b"\x08\x05\x12\x02no" + BINARY))


def reply_of(script: Script, request: bytes, number: int) -> bytes:
    if not script.size:
        return request
    start = number.to_bytes(4)
    return start + BINARY * ((script.size - len(start)) // len(BINARY)) + b"." * ((script.size - len(start)) % len(BINARY))


def answer_the_proxy(path: str, request: bytes) -> bytes:
    """Every sandbox is there, and of a guarded pod; nothing is in a list."""
    if not path.endswith("/PodSandboxStatus"):
        return b""
    sandbox = cri.PodSandboxStatusRequest.FromString(request).pod_sandbox_id
    status = cri.PodSandboxStatus(id=sandbox, metadata=cri.PodSandboxMetadata(name="p", uid=sandbox), annotations=GUARDED)
    return cri.PodSandboxStatusResponse(status=status).SerializeToString()
