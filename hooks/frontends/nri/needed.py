"""Define the kept fields of the runtime's NRI messages: all fields of a call, except in the list of pods (Synchronize).

In that list, only the pods' ids and namespaces are kept, because pod authors decide how large annotations and environments are.

Tests: tests/unit/hooks/frontends/nri/test_sieve.py
"""

from typing import Final

from hooks.frontends.nri.sieve import Fields, Inner, Shrink, Sieve
from protos.nri.v1alpha1 import nri_pb2 as nri

LIST: Final = "Synchronize"


def request_sieve() -> Sieve:
    """Return the sieve of one TtrpcRequest. Senders write fields in numeric order, so the method precedes the payload."""

    def read_method(name: bytes) -> bytes:
        fields[nri.TtrpcRequest.PAYLOAD_FIELD_NUMBER] = Inner(_LISTED) if name == LIST.encode() else _whole
        return name

    fields: dict[int, Shrink | Inner] = {
        nri.TtrpcRequest.SERVICE_FIELD_NUMBER: _whole,
        nri.TtrpcRequest.METHOD_FIELD_NUMBER: read_method,
        nri.TtrpcRequest.PAYLOAD_FIELD_NUMBER: _whole,
        nri.TtrpcRequest.TIMEOUT_NANO_FIELD_NUMBER: _whole,
    }
    return Sieve(fields)


def response_sieve() -> Sieve:
    """Return the sieve of one TtrpcResponse."""
    return Sieve({nri.TtrpcResponse.STATUS_FIELD_NUMBER: _whole, nri.TtrpcResponse.PAYLOAD_FIELD_NUMBER: _whole})


def _whole(value: bytes) -> bytes:
    return value


def _shrink_pod(value: bytes) -> bytes:
    pod = nri.ListedPod.FromString(value)
    pod.DiscardUnknownFields()
    return pod.SerializeToString()


_LISTED: Final[Fields] = {
    nri.SynchronizeRequest.PODS_FIELD_NUMBER: _shrink_pod,
    nri.SynchronizeRequest.MORE_FIELD_NUMBER: _whole,
}
