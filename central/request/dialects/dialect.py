"""Define a dialect of requests: which keys of a pod belong to it, and how it reads them.

A dialect returns Lading's own DeviceRequest, checked by the rules of all dialects (`central.request.check`), with its own keys
in each message. The node's half of a dialect reads what a pod was given, and belongs to `hooks.forms`.

Tests: tests/golden/test_dialects.py
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

import msgspec

from central.request.amounts import BadRequestError, Resource, read_amounts, shown
from central.request.check import Keys, check_request
from central.request.model import ContainerRequest, DeviceRequest, Role
from central.request.pod import Container, Pod, starting_order

_LONGEST: Final = 4096  # maximum characters of a parsed annotation

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedKeys:
    """Name the keys by which a pod requests devices in a dialect, and the other annotations that the dialect reads."""

    resources: Collection[str] = ()  # kube-scheduler leaves these to central
    prefixes: tuple[str, ...] = ()  # prefixes of other resources of the system: typos, and what central cannot give
    keys: Collection[str] = ()  # labels and annotations
    scheduler: str = ""  # scheduler name of the pods in which `keys_of_scheduler` request devices
    keys_of_scheduler: Collection[str] = ()  # keys without a domain, which other pods use for other purposes
    annotations: tuple[str, ...] = ()  # prefixes of the annotations that are read


class Dialect(Protocol):
    """Read the requests of one system's pods."""

    @property
    def name(self) -> str:
        """Return the name of the system, for messages."""
        ...

    @property
    def claims(self) -> ClaimedKeys: ...

    def parse(self, pod: Pod) -> DeviceRequest | None:
        """Return the pod's request; None if the pod requests nothing. Raise BadRequestError for an invalid one. Pure."""
        ...


ReadContainer = Callable[[Container, Mapping[str, int]], ContainerRequest]


def read_pod(
    pod: Pod,
    known: Mapping[str, Resource],
    claims: ClaimedKeys,
    read: ReadContainer,
    refine: Callable[[DeviceRequest], DeviceRequest],
    keys: Keys,
) -> DeviceRequest | None:
    """Return the request of a pod whose containers request by resources. `read` returns the request of one container with these
    amounts, none of which is 0; `refine` adds what the pod's labels and annotations say. Raise BadRequestError, as both may."""
    containers = []
    for container, role in starting_order(pod):
        amounts = {name: amount for name, amount in read_amounts(container, known, claims.prefixes).items() if amount}
        if amounts:
            containers.append(replace(read(container, amounts), role=role))
    wanted = tuple(one for one in containers if not one.empty)
    return check_request(refine(DeviceRequest(containers=wanted)), keys) if wanted else None


def has_shares(request: DeviceRequest) -> bool:
    return any(one.share for one in request.containers)


def on_one_card(request: DeviceRequest) -> bool:
    """Return whether several containers that run at the same time have a share."""
    return sum(one.share is not None and one.role is not Role.INIT for one in request.containers) > 1


def refuse(key: str, reason: str, instead: str) -> BadRequestError:
    """Return an error of the house's form: "cannot use KEY: REASON; write INSTEAD"."""
    return BadRequestError(f"cannot use {key}: {reason}; {instead}")


def choose(mapping: Mapping[str, str], key: str, choices: Mapping[str, T]) -> T | None:
    """Return the choice that the pod names; None if the key is absent. Raise BadRequestError for another value."""
    if key not in mapping:
        return None
    if mapping[key] not in choices:
        raise refuse(key, f"it is {shown(mapping[key])}", f"write {' or '.join(choices)}, or remove it")
    return choices[mapping[key]]


def decode(mapping: Mapping[str, str], key: str, kind: type[T]) -> T | None:
    """Return the JSON value of the annotation; None if the key is absent. Raise BadRequestError if it has another form."""
    text = mapping.get(key)
    if text is None:
        return None
    try:
        if len(text) <= _LONGEST:
            return msgspec.json.decode(text, type=kind)
        problem: Any = f"it has more than {_LONGEST} characters"
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        problem = f"{shown(text)} is not the JSON that it should be ({str(e)[:80]!r})"
    raise refuse(key, problem, "correct it, or remove it")
