from collections.abc import Collection

import pytest

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.projection import container_identity, container_of_config, sandbox_of_config, sandbox_of_list
from tests.unit.runtimeproxy.requests import CREATE_GUARDED, RUN_GUARDED, golden


def guarded() -> cri.CreateContainerRequest:
    return cri.CreateContainerRequest.FromString(golden(CREATE_GUARDED))


def shown_of(config: cri.ContainerConfig, *, env_values: Collection[str] = ()) -> hook.Container:
    return container_of_config(config, container_identity(config), env_values=env_values)


def test_a_real_sandbox_is_shown_with_its_identity_and_annotations() -> None:
    request = cri.RunPodSandboxRequest.FromString(golden(RUN_GUARDED))
    shown = sandbox_of_config(request.config, runtime_handler="kata")
    assert (shown.namespace, shown.name, shown.uid) == ("default", "gpu-by-hand", "e83331fd-32c0-4109-a0e0-1909dcf62934")
    assert shown.annotations["lading.dev/gpus"] == "0,1"
    assert shown.annotations["note"] == "naïve ünïcode ✓"
    assert shown.runtime_handler == "kata"
    assert shown.cgroup_parent.startswith("/kubepods/")
    assert [shown.host_network, shown.user_namespace, shown.privileged] == [False, False, False]


def test_host_network_and_privileged_are_seen() -> None:
    request = cri.RunPodSandboxRequest.FromString(golden("RunPodSandbox-assigned"))
    shown = sandbox_of_config(request.config)
    assert shown.host_network
    assert shown.privileged


@pytest.mark.parametrize(
    ("added", "shown"),
    [
        (["SYS_ADMIN"], True),
        (["CAP_SYS_ADMIN"], True),
        (["sys_admin"], True),
        (["NET_RAW", "ALL"], True),
        (["CAP_ALL"], True),
        (["SYS_PTRACE"], False),
        ([], False),
    ],
)
def test_whether_a_container_adds_sys_admin(added: list[str], shown: bool) -> None:
    config = cri.ContainerConfig()
    config.linux.security_context.capabilities.add_capabilities.extend(added)
    assert shown_of(config).sys_admin is shown


def test_a_user_namespace_needs_more_than_the_default() -> None:
    config = cri.PodSandboxConfig()
    assert not sandbox_of_config(config).user_namespace
    config.linux.security_context.namespace_options.userns_options.mode = cri.POD
    assert sandbox_of_config(config).user_namespace


def test_env_values_stay_behind_but_for_those_that_were_named() -> None:
    shown = shown_of(guarded().config, env_values={"NVIDIA_VISIBLE_DEVICES", "EMPTY"})
    values = {env.name: env.value for env in shown.env if env.HasField("value")}
    assert values == {"NVIDIA_VISIBLE_DEVICES": "all", "EMPTY": ""}
    assert "KUBERNETES_PORT" in {env.name for env in shown.env}
    assert b"10.96.0.1" not in shown_of(guarded().config).SerializeToString()


def test_a_value_that_is_no_text_stays_behind() -> None:
    shown = shown_of(cri.ContainerConfig(envs=[cri.KeyValue(key="A", value=b"\xff")]), env_values={"A"})
    assert [(env.name, env.HasField("value")) for env in shown.env] == [("A", False)]


def test_a_real_container_is_shown_without_where_its_mounts_come_from() -> None:
    shown = shown_of(guarded().config)
    assert "/scratch" in shown.mount_paths
    assert b"/var/lib/kubelet" not in shown.SerializeToString()
    assert shown.image == "localhost/lab/busybox:1"
    assert shown.resources.cpu_quota == 20000
    assert shown.resources.HasField("oom_score_adj")
    assert not shown.resources.HasField("cpuset_cpus")


def test_a_listed_sandbox_has_its_handler() -> None:
    item = cri.PodSandbox(id="s", runtime_handler="kata", annotations={"a": "b"})
    shown = sandbox_of_list(item)
    assert (shown.id, shown.runtime_handler, dict(shown.annotations)) == ("s", "kata", {"a": "b"})
