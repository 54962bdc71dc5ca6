"""Check that adjusting twice equals adjusting once, that disjoint hooks commute, and that other fields stay unchanged."""

import posixpath

from hypothesis import given
from hypothesis import strategies as st

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.adjustment.apply import apply_adjustment
from runtimeproxy.adjustment.merge import Merged, merge
from runtimeproxy.call.calls import Stage
from runtimeproxy.call.outcome import CallRefusal
from tests.unit.runtimeproxy.requests import golden, goldens

CREATE = Stage.CREATE_CONTAINER
MESSAGES = st.sampled_from([golden(name) for name in goldens("CreateContainer")])
# Names of both what real requests contain and what they do not.
ENV_NAMES = ("NVIDIA_VISIBLE_DEVICES", "EMPTY", "KUBERNETES_PORT", "NCCL_IB_HCA", "A")
PATHS = ("/scratch", "/etc/hosts", "/dev/nvidia0", "/dev/infiniband/uverbs0", "/lib/x")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)


def some(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), max_size=3, unique=True)


@st.composite
def adjustments(draw: st.DrawFn, suffix: str = "") -> hook.Adjustment:
    """Draw a valid adjustment. Adjustments with different suffixes share no field."""
    env = [name + suffix for name in draw(some(ENV_NAMES))]
    paths = [path + suffix for path in draw(some(PATHS))]
    made = hook.Adjustment(
        env=[hook.EnvUpsert(name=name, value=draw(TEXT)) for name in env[1:]],
        env_remove=env[:1],
        mounts=[hook.Mount(container_path=path, host_path="/h", readonly=draw(st.booleans())) for path in paths[1:]],
        devices=[hook.Device(container_path=path, host_path=path, permissions="rw") for path in paths[:1]],
        cdi_devices=[f"nvidia.com/gpu={name}{suffix}" for name in draw(some(("0", "GPU-1")))],
        annotations={key + suffix: draw(TEXT) for key in draw(some(("lading.dev/grant", "x")))},
        labels={key + suffix: draw(TEXT) for key in draw(some(("l", "m")))},
        add_capabilities=[name + suffix for name in draw(some(("NET_ADMIN", "IPC_LOCK")))],
    )
    if draw(st.booleans()):
        setattr(made.resources, "cpuset_mems" if suffix else "cpuset_cpus", draw(TEXT))
    return made


def joined(*adjustments: hook.Adjustment) -> hook.Adjustment:
    merged = merge([(f"{i}.json", adjustment) for i, adjustment in enumerate(adjustments)], CREATE)
    assert isinstance(merged, Merged), merged
    return merged.adjustment


def applied(message: bytes, adjustment: hook.Adjustment) -> bytes:
    return apply_adjustment(message, adjustment, CREATE).message


def unordered(message: bytes) -> tuple[object, ...]:
    """Return a request's content without the order of its lists."""
    request = cri.CreateContainerRequest.FromString(message)
    capabilities = request.config.linux.security_context.capabilities
    lists = (request.config.envs, request.config.mounts, request.config.devices, request.config.CDI_devices)
    result = [sorted(entry.SerializeToString() for entry in entries) for entries in lists]
    added = sorted(capabilities.add_capabilities)
    for name in ("envs", "mounts", "devices", "CDI_devices"):
        request.config.ClearField(name)
    capabilities.ClearField("add_capabilities")
    return *result, added, request


@given(MESSAGES, adjustments())
def test_adjusting_twice_equals_once(message: bytes, adjustment: hook.Adjustment) -> None:
    once = applied(message, joined(adjustment))
    again = apply_adjustment(once, joined(adjustment), CREATE)
    assert again.message == once
    assert again.env_replaced == ()


@given(MESSAGES, adjustments(), adjustments("Z"))
def test_disjoint_hooks_commute(message: bytes, first: hook.Adjustment, second: hook.Adjustment) -> None:
    there = applied(message, joined(first, second))
    assert unordered(there) == unordered(applied(message, joined(second, first)))
    assert unordered(there) == unordered(applied(applied(message, joined(first)), joined(second)))


@given(adjustments())
def test_merging_one_changes_nothing_and_merging_it_twice_neither(adjustment: hook.Adjustment) -> None:
    assert joined(adjustment) == adjustment
    assert joined(adjustment, adjustment) == adjustment


@given(adjustments(), adjustments())
def test_a_conflict_does_not_depend_on_the_order(first: hook.Adjustment, second: hook.Adjustment) -> None:
    there = merge([("1.json", first), ("2.json", second)], CREATE)
    back = merge([("2.json", second), ("1.json", first)], CREATE)
    assert isinstance(there, CallRefusal) == isinstance(back, CallRefusal)
    if isinstance(there, CallRefusal):
        assert "1.json" in there.message
        assert "2.json" in there.message


@given(MESSAGES, adjustments(), st.binary(min_size=1, max_size=8))
def test_what_we_do_not_know_survives(message: bytes, adjustment: hook.Adjustment, unknown: bytes) -> None:
    field = b"\xa2\x06" + bytes([len(unknown)]) + unknown  # number 100, which no CRI message has
    config = b"\x12" + bytes([len(field)]) + field  # a second part of field 2: parsers join the two
    after = applied(message + config + field, joined(adjustment))
    assert after.count(field) >= 2
    without = applied(message, joined(adjustment))
    assert len(after) == len(without) + 2 * len(field)


# The changed bytes must equal the parsed request with the same change.


@st.composite
def crowded(draw: st.DrawFn) -> bytes:
    """Draw a request in parts, with repeated names and paths, in equivalent forms."""
    message = draw(MESSAGES)
    for _ in range(draw(st.integers(1, 3))):
        part = cri.CreateContainerRequest()
        for name in draw(st.lists(st.sampled_from(ENV_NAMES), max_size=4)):
            part.config.envs.add(key=name, value=draw(TEXT).encode())
        for path in draw(st.lists(st.sampled_from(PATHS), max_size=4)):
            part.config.mounts.add(container_path=draw(st.sampled_from(["", "/", "/x/.."])) + path + "/", host_path="/theirs")
            part.config.devices.add(container_path=path, host_path="/dev/zero")
        part.config.annotations.update(draw(st.dictionaries(st.sampled_from(["lading.dev/grant", "x", "y"]), TEXT)))
        part.config.linux.resources.cpuset_cpus = draw(TEXT)
        part.config.linux.security_context.capabilities.add_capabilities.extend(draw(some(("NET_ADMIN", "SYS_TIME"))))
        message += part.SerializeToString()
    return message


def expected(message: bytes, adjustment: hook.Adjustment) -> cri.ContainerConfig:
    config = cri.CreateContainerRequest.FromString(message).config
    wanted = {env.name: env.value.encode() for env in adjustment.env}
    envs: dict[object, tuple[str, bytes]] = {}  # key: the name of a wanted variable, or the number of another one
    for number, env in enumerate(config.envs):
        if env.key not in adjustment.env_remove:
            envs.setdefault(env.key if env.key in wanted else number, (env.key, wanted.get(env.key, env.value)))
    for name, value in wanted.items():
        envs.setdefault(name, (name, value))
    del config.envs[:]
    config.envs.extend(cri.KeyValue(key=key, value=value) for key, value in envs.values())
    for ours in adjustment.mounts:
        paths = [posixpath.normpath("/" + mount.container_path.lstrip("/")) for mount in config.mounts]
        here = [number for number, path in enumerate(paths) if path == ours.container_path]
        for number in reversed(here[1:]):
            del config.mounts[number]
        mount = config.mounts[here[0]] if here else config.mounts.add()
        mount.CopyFrom(cri.Mount(container_path=ours.container_path, host_path=ours.host_path, readonly=ours.readonly))
    config.annotations.update(adjustment.annotations)
    config.labels.update(adjustment.labels)
    for field, value in adjustment.resources.ListFields():
        setattr(config.linux.resources, field.name, value)
    added = config.linux.security_context.capabilities.add_capabilities
    if missing := [name for name in adjustment.add_capabilities if name not in added]:
        added.extend(missing)  # an empty list would make the messages around it
    return config


@given(crowded(), adjustments())
def test_the_bytes_come_to_what_is_done_with_the_parsed_request(message: bytes, adjustment: hook.Adjustment) -> None:
    merged = joined(adjustment)
    once = applied(message, merged)
    result = cri.CreateContainerRequest.FromString(once).config
    wanted = expected(message, merged)
    for config in (result, wanted):
        config.ClearField("devices")  # like mounts
        config.ClearField("CDI_devices")
    assert result == wanted
    assert applied(once, merged) == once
