"""A request of CRI as its wire format is handled here, against protobuf's own parse of the whole.

Whatever the bytes are: parsed in parts it is the same message, or refused likewise; its fields lie one behind the other; a
string is found where it is. One that can be read is adjusted on its bytes as it would be as a message, and once is enough.
"""

from typing import Any, Final
from unittest.mock import patch

from google.protobuf.message import DecodeError, Message

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.adjustment.apply import apply_adjustment
from runtimeproxy.adjustment.merge import Merged, merge
from runtimeproxy.call.calls import Stage, read_id
from runtimeproxy.protobuf import wire
from tests.fuzz.tape import Tape
from tests.properties.test_adjustment import expected

KINDS: Final[dict[Stage, type[Message]]] = {
    Stage.CREATE_CONTAINER: cri.CreateContainerRequest,
    Stage.RUN_POD_SANDBOX: cri.RunPodSandboxRequest,
    Stage.UPDATE_CONTAINER_RESOURCES: cri.UpdateContainerResourcesRequest,
}
PARTS: Final = (8, 1, 64, 64 << 10)
NAMES: Final = ("A", "B", "NVIDIA_VISIBLE_DEVICES", "lading.dev/grant")
PATHS: Final = ("/a", "/dev/x", "/dev/nvidia0")


def play(data: bytes) -> None:
    """Raises AssertionError, or whatever is no DecodeError."""
    tape = Tape(data)
    stage, part = tape.pick(tuple(KINDS)), tape.pick(PARTS)
    adjustment = _adjustment(tape, stage)
    message = tape.rest()
    parsed = _parsed(KINDS[stage], message)
    _check_parts(KINDS[stage], message, parsed, part)
    _check_fields(message, whole=parsed is not None)
    if parsed is not None:
        _check_id(stage, message, parsed)
        _check_adjusted(stage, message, adjustment)


def _parsed(kind: type[Message], message: bytes) -> Message | None:
    try:
        return kind.FromString(message)
    except DecodeError:
        return None


def _check_parts(kind: type[Message], message: bytes, parsed: Message | None, part: int) -> None:
    with patch.object(wire, "PART", part):  # so that small messages have parts
        try:
            in_parts = wire.parse_in_parts(kind, message)
        except DecodeError:
            assert parsed is None
        else:
            assert in_parts == parsed
    for at in range(0, len(message), 7):
        assert wire.contains(message, message[at : at + 3])
    assert wire.contains(message, b"lading.dev/") is (b"lading.dev/" in message)


def _check_fields(message: bytes, *, whole: bool) -> None:
    at = 0
    try:
        for tag, begin, content, stop in wire.fields(message, 0, len(message)):
            assert tag >> 3
            assert at == begin < content <= stop <= len(message)
            at = stop
    except wire.BrokenWireError:
        assert not whole
    else:
        assert at == len(message)


def _check_id(stage: Stage, message: bytes, parsed: Any) -> None:
    match stage:
        case Stage.CREATE_CONTAINER:
            assert read_id(message) in ("", parsed.pod_sandbox_id)
        case Stage.UPDATE_CONTAINER_RESOURCES:
            assert read_id(message) in ("", parsed.container_id)
        case _:
            read_id(message)


def _adjustment(tape: Tape, stage: Stage) -> hook.Adjustment:
    made = hook.Adjustment()
    env, names, paths, rest = tape.byte(), tape.byte(), tape.byte(), tape.byte()
    if stage is not Stage.UPDATE_CONTAINER_RESOURCES:
        made.labels.update(dict.fromkeys(_some(NAMES[:2], names >> 4), "l"))
    made.annotations.update(dict.fromkeys(_some(("x", "lading.dev/grant"), names >> 2), "v" * (names & 1)))
    if stage is Stage.CREATE_CONTAINER:
        made.env.extend(hook.EnvUpsert(name=name, value=str(env)) for name in _some(NAMES, env))
        made.env_remove.extend(name for name in _some(NAMES, env >> 4) if name not in _some(NAMES, env))
        made.mounts.extend(hook.Mount(container_path=path, host_path="/h") for path in _some(PATHS, paths))
        devices = _some(PATHS, paths >> 3 & ~paths)
        made.devices.extend(hook.Device(container_path=path, host_path="/d", permissions="rw") for path in devices)
        made.cdi_devices.extend(_some(("nvidia.com/gpu=0", "nvidia.com/gpu=1"), paths >> 6))
        made.add_capabilities.extend(_some(("IPC_LOCK", "NET_ADMIN"), rest >> 4))
    if rest & 1:
        made.resources.cpuset_cpus = "0-3"
    if rest & 2:
        made.resources.oom_score_adj = -999
    merged = merge([("fuzz.json", made)], stage)
    assert isinstance(merged, Merged), merged
    return merged.adjustment


def _some(names: tuple[str, ...], bits: int) -> list[str]:
    return [name for number, name in enumerate(names) if bits >> number & 1]


def _check_adjusted(stage: Stage, message: bytes, adjustment: hook.Adjustment) -> None:
    once = apply_adjustment(message, adjustment, stage).message
    assert apply_adjustment(once, adjustment, stage).message == once
    if _knows_all(KINDS[stage].FromString(message)):
        _check_meaning(stage, message, adjustment, once)


def _knows_all(parsed: Message) -> bool:
    """Else a map's entry may have some, which Python's protobuf then takes out of its map. They survive, properties say."""
    size = parsed.ByteSize()
    parsed.DiscardUnknownFields()
    return parsed.ByteSize() == size


def _check_meaning(stage: Stage, message: bytes, adjustment: hook.Adjustment, once: bytes) -> None:
    result, wanted = (KINDS[stage].FromString(m) for m in (once, _wanted(stage, message, adjustment)))
    if stage is Stage.CREATE_CONTAINER:  # devices are as mounts, names are appended: the properties and unit tests have these
        for request in (result, wanted):
            for name in ("devices", "CDI_devices"):
                request.config.ClearField(name)  # type: ignore[attr-defined]
    assert result == wanted


def _wanted(stage: Stage, message: bytes, adjustment: hook.Adjustment) -> bytes:
    request: Any = KINDS[stage].FromString(message)
    match stage:
        case Stage.CREATE_CONTAINER:
            request.config.CopyFrom(expected(message, adjustment))
            changes = bool(adjustment.ListFields())
            if not changes and not KINDS[stage].FromString(message).HasField("config"):
                request.ClearField("config")
        case Stage.RUN_POD_SANDBOX:
            request.config.annotations.update(adjustment.annotations)
            request.config.labels.update(adjustment.labels)
            for field, value in adjustment.resources.ListFields():
                setattr(request.config.linux.resources, field.name, value)
        case _:
            request.annotations.update(adjustment.annotations)
            for field, value in adjustment.resources.ListFields():
                setattr(request.linux, field.name, value)
    answer: bytes = request.SerializeToString()
    return answer
