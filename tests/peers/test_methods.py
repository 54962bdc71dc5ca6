"""Every method of both services in both versions, and what no version has: the caller sees the same with and without the proxy.

Seen to fail against a relay that keeps one of several header fields of a name.
"""

from typing import Final

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from protos.cri.runtime.v1 import api_pb2 as cri
from tests.peers.callers import ask
from tests.peers.conftest import Ways
from tests.peers.runtimes import LATER, METHODS, VERSIONS
from tests.peers.script import BINARY, Script

# Field 9999, bytes: what a later version of CRI may have.
LATER_FIELD: Final = bytes.fromhex("faf004") + b"\x05later"
DEPTH: Final = 3

REQUESTS: Final = {
    (service.name, method.name): method.input_type
    for service in cri.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
FAILURES: Final = [
    Script(code="NOT_FOUND", details='an error occurred: container "ä" in namespace "k8s.io": not found', replies=0),
    Script(code="UNAVAILABLE", details="", replies=0),
    Script(code="RESOURCE_EXHAUSTED", details="50 % of\n" + "x" * 2000, replies=1),
]
UNKNOWN: Final = [
    "/runtime.v1.RuntimeService/Missing",
    "/runtime.v2.RuntimeService/CreateContainer",
    "/runtime.v1.runtimeservice/CreateContainer",
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/Version",
]


def filled(kind: Descriptor, depth: int = DEPTH) -> Message:
    """Every field that is no message has a value, as deep as `depth`."""
    message: Message = getattr(cri, kind.name)()
    for field in kind.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].type == field.TYPE_STRING:
                getattr(message, field.name)[f"{field.name}/ä"] = "value"
        elif field.message_type is not None:
            if depth and field.message_type.file is cri.DESCRIPTOR:
                inner = filled(field.message_type, depth - 1)
                if field.is_repeated:
                    getattr(message, field.name).append(inner)
                else:
                    getattr(message, field.name).CopyFrom(inner)
        else:
            value = {
                field.CPPTYPE_STRING: b"\x00\xff" if field.type == field.TYPE_BYTES else "text",
                field.CPPTYPE_BOOL: True,
                field.CPPTYPE_DOUBLE: 0.5,
                field.CPPTYPE_FLOAT: 0.5,
            }.get(field.cpp_type, 1)
            if field.is_repeated:
                getattr(message, field.name).extend([value, value])
            else:
                setattr(message, field.name, value)
    return message


def request_of(service: str, method: str) -> bytes:
    return filled(REQUESTS[service, method]).SerializeToString() + LATER_FIELD


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("service", "method"), METHODS)
def test_a_reply_is_the_same(ways: Ways, version: str, service: str, method: str) -> None:
    path, request = f"/runtime.{version}.{service}/{method}", request_of(service, method)
    direct = ask(ways.direct, path, request)
    assert direct.code == "OK"
    assert direct.replies == (request,)
    assert {("x-trailing-bin", BINARY), ("x-trailing", "b")} <= set(direct.trailing)
    assert ask(ways.proxied, path, request) == direct


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_are_the_same(ways: Ways, version: str) -> None:
    for service, method in METHODS:
        path, request = f"/runtime.{version}.{service}/{method}", request_of(service, method)
        for script in FAILURES:
            direct = ask(ways.direct, path, request, script)
            assert (direct.code, direct.details) == (script.code, script.details)
            assert "grpc-status-details-bin" in dict(direct.trailing)
            assert ask(ways.proxied, path, request, script) == direct


def test_a_method_of_tomorrow_is_served(ways: Ways) -> None:
    path = f"/runtime.v1.{LATER[0]}/{LATER[1]}"
    direct = ask(ways.direct, path, BINARY)
    assert direct.code == "OK"
    assert ask(ways.proxied, path, BINARY) == direct


@pytest.mark.parametrize("path", UNKNOWN)
def test_what_the_runtime_does_not_have_is_refused_by_the_runtime(ways: Ways, path: str) -> None:
    direct = ask(ways.direct, path, BINARY)
    assert direct.code == "UNIMPLEMENTED"
    assert ask(ways.proxied, path, BINARY) == direct
