"""Test NRI's messages as values, and what NRI cannot express: it is refused by name."""

import pytest

from hooks.frontends.nri.messages import NriDevice, Runtime, read_container, read_netns, read_sandbox, render_answer
from hooks.model.assignment import Refusal
from hooks.model.cdi import Hook
from hooks.model.container import Adjustment, Answer, Container, Device, EnvVar, Mount, Sandbox
from lading.errors import HostError
from lading.reasons import Reason
from protos.nri.v1alpha1 import nri_pb2 as nri

NEW = Runtime(name="containerd", version="v2.3.4")
OLD = Runtime(name="containerd", version="1.7.24~ds1")
NODE = NriDevice(major=195, minor=2, mode=0o660, uid=1, gid=2)


def render(adjustment: Adjustment, runtime: Runtime = NEW) -> nri.ContainerAdjustment | Refusal:
    return render_answer(Answer(adjustment=adjustment), runtime, lambda _: NODE)


@pytest.mark.parametrize(
    ("version", "cdi", "validates"),
    [
        ("1.7.24~ds1", False, False),
        ("1.7.26", True, False),
        ("v2.0.0", True, False),
        ("2.1.9+unknown", True, False),
        ("2.2.0", True, True),
        ("2.3.4", True, True),
        ("10.0", True, True),
        ("dev", False, False),
        ("", False, False),
    ],
)
def test_what_a_runtime_can_do_follows_from_its_version(version: str, cdi: bool, validates: bool) -> None:
    runtime = Runtime(name="containerd", version=version)
    assert (runtime.honours_cdi, runtime.validates) == (cdi, validates)


def test_nothing_is_expected_of_another_runtime() -> None:
    runtime = Runtime(name="cri-o", version="9.9.9")
    assert (runtime.honours_cdi, runtime.validates) == (False, False)


def pod(*namespaces: str) -> nri.PodSandbox:
    message = nri.PodSandbox(id="s", uid="u", namespace="ns", name="p", annotations={"a": "b"}, runtime_handler="runc")
    for name in namespaces:
        message.linux.namespaces.add(type=name, path="/run/netns/x" if name == "network" else "")
    return message


def test_a_sandbox_is_read() -> None:
    assert read_sandbox(pod("pid", "network")) == Sandbox(
        id="s", uid="u", namespace="ns", name="p", annotations={"a": "b"}, runtime_handler="runc"
    )
    assert read_netns(pod("pid", "network")) == "/run/netns/x"


def test_namespaces_say_whether_a_pod_has_the_hosts_network_or_users_of_its_own() -> None:
    assert read_sandbox(pod("pid", "ipc")).host_network
    assert read_sandbox(pod("network", "user")).user_namespace
    assert read_netns(pod("pid", "ipc")) == ""


def test_at_its_end_a_sandbox_has_no_namespaces_and_not_the_hosts_network() -> None:
    """Check StopPodSandbox of containerd 1.7, which has no namespaces."""
    assert not read_sandbox(pod()).host_network


def test_a_container_is_read() -> None:
    message = nri.Container(id="c", name="train", annotations={"k": "v"}, env=["A=b=c", "EMPTY=", "BARE"])
    message.linux.devices.add(path="/dev/nvidia0")
    assert read_container(message) == Container(
        id="c",
        name="train",
        annotations={"k": "v"},
        env=(EnvVar("A", "b=c"), EnvVar("EMPTY", ""), EnvVar("BARE", "")),
        devices=(Device("/dev/nvidia0"),),
    )


def test_a_privileged_container_is_known_by_the_rule_for_all_devices() -> None:
    message = nri.Container()
    message.linux.resources.devices.add(allow=False, access="rwm")
    message.linux.resources.devices.add(allow=True, type="c", access="rw").major.value = 1
    assert not read_container(message).privileged
    message.linux.resources.devices.add(allow=True, access="rwm")
    assert read_container(message).privileged


def test_an_adjustment_is_rendered() -> None:
    result = render(
        Adjustment(
            env=(EnvVar("A", "1"),),
            devices=(Device("/dev/nvidia0", "/host/dev/nvidia0", "rw"),),
            mounts=(Mount("/in", "/out"), Mount("/rw", "/out", readonly=False)),
            cdi_devices=("nvidia.com/gpu=0",),
            annotations={"lading.dev/grant": ""},
        )
    )
    assert isinstance(result, nri.ContainerAdjustment)
    assert [(env.key, env.value) for env in result.env] == [("A", "1")]
    (device,) = result.linux.devices
    assert (device.path, device.type, device.major, device.minor) == ("/dev/nvidia0", "c", 195, 2)
    assert (device.file_mode.value, device.uid.value, device.gid.value) == (0o660, 1, 2)
    assert [(mount.destination, mount.source, mount.type, list(mount.options)) for mount in result.mounts] == [
        ("/in", "/out", "bind", ["rbind", "rprivate", "ro"]),
        ("/rw", "/out", "bind", ["rbind", "rprivate", "rw"]),
    ]
    assert [one.name for one in result.CDI_devices] == ["nvidia.com/gpu=0"]
    assert dict(result.annotations) == {"lading.dev/grant": ""}


def test_a_hook_runs_before_the_container_starts() -> None:
    hook = Hook(hook_name="createContainer", path="/opt/hook", args=("hook", "--x"), env=("A=b",))
    message = render(Adjustment(hooks=(hook,)))
    assert isinstance(message, nri.ContainerAdjustment)
    expected = nri.Hooks(create_container=[nri.Hook(path="/opt/hook", args=["hook", "--x"], env=["A=b"])])
    assert message.hooks == expected


def test_a_container_may_lock_memory_without_a_limit() -> None:
    result = render(Adjustment(unlimited_memlock=True))
    assert isinstance(result, nri.ContainerAdjustment)
    assert [(one.type, one.hard, one.soft) for one in result.rlimits] == [("RLIMIT_MEMLOCK", 2**64 - 1, 2**64 - 1)]


def test_cdi_names_are_refused_where_the_runtime_ignores_them() -> None:
    result = render(Adjustment(cdi_devices=("nvidia.com/gpu=0",)), OLD)
    assert isinstance(result, Refusal)
    assert result.reason is Reason.CDI_UNAVAILABLE
    assert "containerd 1.7.24~ds1" in result.message


@pytest.mark.parametrize(
    ("adjustment", "named"),
    [
        (Adjustment(add_capabilities=("IPC_LOCK",)), "IPC_LOCK"),
        (Adjustment(devices=(Device("/dev/nvidia0", "/dev/nvidia0", "rwm"),)), "/dev/nvidia0 with 'rwm'"),
        (Adjustment(devices=(Device("/dev/nvidia0", "/dev/nvidia0", "r"),)), "/dev/nvidia0 with 'r'"),
    ],
)
def test_what_nri_has_no_form_for_is_refused_by_name(adjustment: Adjustment, named: str) -> None:
    result = render(adjustment)
    assert isinstance(result, Refusal)
    assert result.reason is Reason.NRI_UNSUPPORTED
    assert named in result.message


def test_a_node_that_cannot_be_read_is_an_error() -> None:
    def scan(path: str) -> NriDevice:
        raise HostError(f"cannot give {path}")

    with pytest.raises(HostError, match="cannot give /gone"):
        render_answer(Answer(adjustment=Adjustment(devices=(Device("/dev/x", "/gone", "rw"),))), NEW, scan)
