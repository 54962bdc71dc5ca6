import pytest

from hooks.grant.pod import PodPolicy, check_pod
from hooks.model.assignment import ContainerRequest, GpuRequest, VfRequest
from lading.reasons import Reason
from protos.hook.v1 import hook_pb2

GPU = ContainerRequest(gpus=(GpuRequest(name="0"),))
VF = ContainerRequest(vfs=(VfRequest(name="mlx5_1"),))
ANY_VF = ContainerRequest(any_vfs=1)
PLAIN = hook_pb2.Container(name="train")
NVIDIA = hook_pb2.Container(devices=[hook_pb2.Device(container_path="/dev/nvidia0", host_path="/dev/nvidia0")])
UVERBS = hook_pb2.Container(devices=[hook_pb2.Device(container_path="/dev/infiniband/uverbs0", host_path="x")])
SYS_ADMIN = hook_pb2.Container(sys_admin=True)
PRIVILEGED = hook_pb2.Container(privileged=True)
WITH_UUID = hook_pb2.Container(env=[hook_pb2.EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="GPU-1")])


def reason(
    request: ContainerRequest,
    container: hook_pb2.Container = PLAIN,
    sandbox: hook_pb2.PodSandbox | None = None,
    policy: PodPolicy | None = None,
) -> Reason | None:
    refusal = check_pod(sandbox or hook_pb2.PodSandbox(), container, request, policy or PodPolicy())
    return refusal.reason if refusal else None


def test_a_plain_pod() -> None:
    for request in (GPU, VF, ANY_VF):
        assert reason(request) is None
        assert reason(request, sandbox=hook_pb2.PodSandbox(runtime_handler="nvidia", privileged=True)) is None


def test_containers_without_an_assignment_are_never_refused() -> None:
    sandbox = hook_pb2.PodSandbox(runtime_handler="kata", user_namespace=True)
    both = hook_pb2.Container(privileged=True, devices=NVIDIA.devices)
    assert reason(ContainerRequest(), both, sandbox) is None


@pytest.mark.parametrize("handler", ["kata", "kata-qemu", "runsc", "gvisor-debug"])
def test_runtimes_with_another_kernel(handler: str) -> None:
    sandbox = hook_pb2.PodSandbox(runtime_handler=handler)
    assert reason(VF, sandbox=sandbox) == Reason.RUNTIME_HANDLER
    assert reason(VF, sandbox=sandbox, policy=PodPolicy(unsupported_handlers=())) is None
    assert reason(VF, sandbox=hook_pb2.PodSandbox(runtime_handler="my-" + handler)) is None


def test_privileged_containers() -> None:
    assert reason(GPU, PRIVILEGED) == Reason.PRIVILEGED
    assert reason(GPU, PRIVILEGED, policy=PodPolicy(allow_privileged=True)) is None


def test_containers_that_open_every_device_by_a_capability() -> None:
    assert reason(GPU, SYS_ADMIN) == Reason.PRIVILEGED
    assert reason(GPU, SYS_ADMIN, policy=PodPolicy(allow_privileged=True)) is None
    assert reason(ContainerRequest(), SYS_ADMIN) is None


def test_user_namespaces() -> None:
    assert reason(GPU, sandbox=hook_pb2.PodSandbox(user_namespace=True)) == Reason.USER_NAMESPACE


def test_a_device_plugin_gives_the_same_kind() -> None:
    assert reason(GPU, NVIDIA) == Reason.DEVICE_PLUGIN_CONFLICT
    assert reason(VF, NVIDIA) is None
    assert reason(VF, UVERBS) == Reason.DEVICE_PLUGIN_CONFLICT
    assert reason(ANY_VF, UVERBS) == Reason.DEVICE_PLUGIN_CONFLICT
    assert reason(GPU, UVERBS) is None


def test_a_uuid_in_the_environment_is_a_plugins_only_where_one_serves_the_node() -> None:
    assert reason(GPU, WITH_UUID) is None
    assert reason(GPU, WITH_UUID, policy=PodPolicy(coexist=True)) == Reason.DEVICE_PLUGIN_CONFLICT
    every = hook_pb2.Container(env=[hook_pb2.EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="all")])
    assert reason(GPU, every, policy=PodPolicy(coexist=True)) is None
