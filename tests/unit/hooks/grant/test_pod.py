import pytest

from hooks.grant.pod import PodPolicy, check_pod
from hooks.model.assignment import ContainerRequest, GpuRequest, VfRequest
from hooks.model.container import Container, Device, EnvVar, Sandbox
from hooks.vendors.nvidia.vendor import Nvidia
from lading.reasons import Reason

GPU = ContainerRequest(gpus=(GpuRequest(name="0"),))
VF = ContainerRequest(vfs=(VfRequest(name="mlx5_1"),))
ANY_VF = ContainerRequest(any_vfs=1)
PLAIN = Container(name="train")
NVIDIA = Container(devices=(Device("/dev/nvidia0", "/dev/nvidia0"),))
UVERBS = Container(devices=(Device("/dev/infiniband/uverbs0", "x"),))
SYS_ADMIN = Container(sys_admin=True)
PRIVILEGED = Container(privileged=True)
WITH_UUID = Container(env=(EnvVar("NVIDIA_VISIBLE_DEVICES", "GPU-1"),))


def reason(
    request: ContainerRequest, container: Container = PLAIN, sandbox: Sandbox | None = None, policy: PodPolicy | None = None
) -> Reason | None:
    refusal = check_pod(sandbox or Sandbox(), container, request, policy or PodPolicy(), [Nvidia()])
    return refusal.reason if refusal else None


def test_a_plain_pod() -> None:
    for request in (GPU, VF, ANY_VF):
        assert reason(request) is None
        assert reason(request, sandbox=Sandbox(runtime_handler="nvidia")) is None


def test_containers_without_an_assignment_are_never_refused() -> None:
    sandbox = Sandbox(runtime_handler="kata", user_namespace=True)
    both = Container(privileged=True, devices=NVIDIA.devices)
    assert reason(ContainerRequest(), both, sandbox) is None


@pytest.mark.parametrize("handler", ["kata", "kata-qemu", "runsc", "gvisor-debug"])
def test_runtimes_with_another_kernel(handler: str) -> None:
    sandbox = Sandbox(runtime_handler=handler)
    assert reason(VF, sandbox=sandbox) == Reason.RUNTIME_HANDLER
    assert reason(VF, sandbox=sandbox, policy=PodPolicy(unsupported_handlers=())) is None
    assert reason(VF, sandbox=Sandbox(runtime_handler="my-" + handler)) is None


def test_privileged_containers() -> None:
    assert reason(GPU, PRIVILEGED) == Reason.PRIVILEGED
    assert reason(GPU, PRIVILEGED, policy=PodPolicy(allow_privileged=True)) is None


def test_containers_that_open_every_device_by_a_capability() -> None:
    assert reason(GPU, SYS_ADMIN) == Reason.PRIVILEGED
    assert reason(GPU, SYS_ADMIN, policy=PodPolicy(allow_privileged=True)) is None
    assert reason(ContainerRequest(), SYS_ADMIN) is None


def test_user_namespaces() -> None:
    assert reason(GPU, sandbox=Sandbox(user_namespace=True)) == Reason.USER_NAMESPACE


def test_a_device_plugin_gives_the_same_kind() -> None:
    assert reason(GPU, NVIDIA) == Reason.DEVICE_PLUGIN_CONFLICT
    assert reason(VF, NVIDIA) is None
    assert reason(VF, UVERBS) == Reason.DEVICE_PLUGIN_CONFLICT
    assert reason(ANY_VF, UVERBS) == Reason.DEVICE_PLUGIN_CONFLICT
    assert reason(GPU, UVERBS) is None


def test_a_uuid_in_the_environment_is_a_plugins_only_where_one_serves_the_node() -> None:
    assert reason(GPU, WITH_UUID) is None
    assert reason(GPU, WITH_UUID, policy=PodPolicy(coexist=True)) == Reason.DEVICE_PLUGIN_CONFLICT
    every = Container(env=(EnvVar("NVIDIA_VISIBLE_DEVICES", "all"),))
    assert reason(GPU, every, policy=PodPolicy(coexist=True)) is None
