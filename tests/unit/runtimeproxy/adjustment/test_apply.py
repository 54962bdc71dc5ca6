import pytest

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.adjustment.apply import apply_adjustment
from runtimeproxy.call.calls import Stage
from tests.unit.runtimeproxy.requests import CREATE_GUARDED, RUN_GUARDED, golden, goldens

EVERYTHING = hook.Adjustment(
    env=[hook.EnvUpsert(name="NVIDIA_VISIBLE_DEVICES", value="void"), hook.EnvUpsert(name="NEW", value="ü")],
    env_remove=["EMPTY"],
    mounts=[hook.Mount(container_path="/scratch", host_path="/ours", readonly=True), hook.Mount(container_path="/n")],
    devices=[hook.Device(container_path="/dev/nvidia0", host_path="/dev/nvidia0", permissions="rw")],
    cdi_devices=["nvidia.com/gpu=0"],
    annotations={"lading.dev/grant": "{}"},
    labels={"l": "v"},
    resources=hook.LinuxResources(oom_score_adj=0, cpuset_mems="0", unified={"memory.high": "1"}),
    add_capabilities=["IPC_LOCK", "NET_ADMIN"],
)


def onto(config: cri.ContainerConfig, adjustment: hook.Adjustment) -> tuple[cri.ContainerConfig, tuple[str, ...]]:
    message = cri.CreateContainerRequest(config=config).SerializeToString()
    applied = apply_adjustment(message, adjustment, Stage.CREATE_CONTAINER)
    return cri.CreateContainerRequest.FromString(applied.message).config, applied.env_replaced


def envs(*pairs: tuple[str, bytes]) -> cri.ContainerConfig:
    return cri.ContainerConfig(envs=[cri.KeyValue(key=k, value=v) for k, v in pairs])


def upsert(**values: str) -> hook.Adjustment:
    return hook.Adjustment(env=[hook.EnvUpsert(name=n, value=v) for n, v in values.items()])


def pairs(config: cri.ContainerConfig) -> list[tuple[str, bytes]]:
    return [(env.key, env.value) for env in config.envs]


def test_env_is_replaced_in_place_and_appended_otherwise() -> None:
    config, replaced = onto(envs(("A", b"1"), ("B", b"2"), ("C", b"3")), upsert(B="two", D="4"))
    assert pairs(config) == [("A", b"1"), ("B", b"two"), ("C", b"3"), ("D", b"4")]
    assert replaced == ("B",)


def test_of_duplicates_the_first_place_stays() -> None:
    config, replaced = onto(envs(("A", b"1"), ("X", b"0"), ("A", b"2"), ("X", b"0")), upsert(A="ours"))
    assert pairs(config) == [("A", b"ours"), ("X", b"0"), ("X", b"0")]
    assert replaced == ("A",)


def test_env_that_is_as_wanted_counts_as_kept() -> None:
    config, replaced = onto(envs(("A", b"1")), upsert(A="1"))
    assert pairs(config) == [("A", b"1")]
    assert replaced == ()


def test_a_later_duplicate_that_differs_counts_as_replaced() -> None:
    assert onto(envs(("A", b"ours"), ("A", b"all")), upsert(A="ours"))[1] == ("A",)


def test_env_is_removed_everywhere() -> None:
    config, replaced = onto(envs(("A", b""), ("B", b"2"), ("A", b"3")), hook.Adjustment(env_remove=["A", "Z"]))
    assert pairs(config) == [("B", b"2")]
    assert replaced == ("A",)


def test_a_mount_takes_over_its_place_however_that_was_written() -> None:
    theirs = cri.Mount(container_path="//dev/shm/../x/", host_path="/old", propagation=cri.PROPAGATION_BIDIRECTIONAL)
    config, _ = onto(
        cri.ContainerConfig(mounts=[theirs, cri.Mount(container_path="/dev/x", host_path="/older")]),
        hook.Adjustment(mounts=[hook.Mount(container_path="/dev/x", host_path="/new", readonly=True)]),
    )
    assert list(config.mounts) == [cri.Mount(container_path="/dev/x", host_path="/new", readonly=True)]


def test_devices_are_replaced_by_path_or_appended() -> None:
    theirs = [cri.Device(container_path=p, host_path="/dev/zero", permissions="rwm") for p in ("/dev/a", "/dev/b")]
    ours = [hook.Device(container_path=p, host_path=p, permissions="rw") for p in ("/dev/b", "/dev/c")]
    config, _ = onto(cri.ContainerConfig(devices=theirs), hook.Adjustment(devices=ours))
    assert [(d.container_path, d.host_path, d.permissions) for d in config.devices] == [
        ("/dev/a", "/dev/zero", "rwm"),
        ("/dev/b", "/dev/b", "rw"),
        ("/dev/c", "/dev/c", "rw"),
    ]


def test_cdi_names_and_capabilities_are_appended_once() -> None:
    theirs = cri.ContainerConfig(CDI_devices=[cri.CDIDevice(name="v/c=1")])
    theirs.linux.security_context.capabilities.add_capabilities.append("NET_ADMIN")
    ours = hook.Adjustment(cdi_devices=["v/c=1", "v/c=2"], add_capabilities=["NET_ADMIN", "IPC_LOCK"])
    config, _ = onto(theirs, ours)
    assert [d.name for d in config.CDI_devices] == ["v/c=1", "v/c=2"]
    assert list(config.linux.security_context.capabilities.add_capabilities) == ["NET_ADMIN", "IPC_LOCK"]


def test_resources_that_are_not_named_stay_and_linux_may_be_missing() -> None:
    ours = hook.Adjustment(resources=hook.LinuxResources(cpu_shares=7, oom_score_adj=0))
    theirs = cri.ContainerConfig()
    theirs.linux.resources.oom_score_adj = 999
    theirs.linux.resources.cpu_quota = 5
    config, _ = onto(theirs, ours)
    assert config.linux.resources == cri.LinuxContainerResources(cpu_shares=7, cpu_quota=5)
    assert onto(cri.ContainerConfig(), ours)[0].linux.resources.cpu_shares == 7


def test_without_resources_linux_is_not_made() -> None:
    assert not onto(cri.ContainerConfig(), upsert(A="1"))[0].HasField("linux")


def test_a_sandbox_takes_annotations_labels_and_resources() -> None:
    ours = hook.Adjustment(annotations={"a": "1"}, labels={"b": "2"}, resources=hook.LinuxResources(cpu_shares=9))
    applied = apply_adjustment(golden(RUN_GUARDED), ours, Stage.RUN_POD_SANDBOX)
    before, after = (cri.RunPodSandboxRequest.FromString(m).config for m in (golden(RUN_GUARDED), applied.message))
    assert dict(after.annotations) == {**before.annotations, "a": "1"}
    assert dict(after.labels) == {**before.labels, "b": "2"}
    assert after.linux.resources.cpu_shares == 9
    assert after.linux.cgroup_parent == before.linux.cgroup_parent


def test_an_update_takes_resources_and_annotations() -> None:
    message = golden("UpdateContainerResources-1")
    ours = hook.Adjustment(annotations={"a": "1"}, resources=hook.LinuxResources(cpu_shares=9))
    after = cri.UpdateContainerResourcesRequest.FromString(
        apply_adjustment(message, ours, Stage.UPDATE_CONTAINER_RESOURCES).message
    )
    assert (after.linux.cpu_shares, after.linux.cpu_quota, after.annotations["a"]) == (9, 15000, "1")


def test_a_stage_that_carries_nothing_comes_back_as_it_was() -> None:
    message = golden("StopContainer-1")
    assert apply_adjustment(message, EVERYTHING, Stage.STOP_CONTAINER).message == message


@pytest.mark.parametrize("name", goldens("CreateContainer"))
def test_real_requests_keep_what_is_not_named(name: str) -> None:
    before = cri.CreateContainerRequest.FromString(golden(name))
    after = cri.CreateContainerRequest.FromString(apply_adjustment(golden(name), EVERYTHING, Stage.CREATE_CONTAINER).message)
    assert after.sandbox_config == before.sandbox_config
    named = {"NVIDIA_VISIBLE_DEVICES", "NEW", "EMPTY"}
    assert [e for e in after.config.envs if e.key not in named] == [e for e in before.config.envs if e.key not in named]
    for field in ("metadata", "image", "command", "args", "working_dir", "log_path", "stdin", "tty"):
        assert getattr(after.config, field) == getattr(before.config, field)
    assert after.config.linux.resources.hugepage_limits == before.config.linux.resources.hugepage_limits
    assert after.config.linux.security_context.masked_paths == before.config.linux.security_context.masked_paths


def test_unknown_fields_survive_at_every_depth() -> None:
    field = b"\xa2\x06\x04kept"  # number 100
    env = b"\x0a\x01A\x12\x01x" + field
    config = b"\x32" + bytes([len(env)]) + env + field
    message = b"\x12" + bytes([len(config)]) + config + field
    after = apply_adjustment(message, upsert(A="ours"), Stage.CREATE_CONTAINER).message
    assert after.count(field) == 3
    assert b"ours" in after


def test_a_real_container_asks_for_every_card_and_does_not_get_it() -> None:
    applied = apply_adjustment(golden(CREATE_GUARDED), EVERYTHING, Stage.CREATE_CONTAINER)
    assert applied.env_replaced == ("NVIDIA_VISIBLE_DEVICES", "EMPTY")
