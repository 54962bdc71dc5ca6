"""Test what a container with a share by MPS gets, and the limits of a card's daemon."""

from dataclasses import replace

import pytest

from hooks.grant.decide import View, decide
from hooks.isolation.mps import Limits, Mps, MpsFolders, largest_limits
from hooks.isolation.tokens import Tokens
from hooks.isolation.unenforced import Unenforced
from hooks.model.answer import Answer
from hooks.model.assignment import GrantedDevices, GrantedGpu, Refusal
from hooks.model.container import Container, EnvVar, Mount, Sandbox
from hooks.model.grant import holding_of
from hooks.model.holding import Holding
from lading.devices.assignment import MAX_MEMORY_MIB
from lading.devices.isolation import IsolationName
from lading.reasons import Reason
from lading.vocabulary import PodUid
from tests.fakes.holders import BOOT, NOW, grant
from tests.unit.hooks.inventories import gpu, inventory, uuid
from tests.unit.hooks.rules import RULES

FOLDERS = MpsFolders(mps_dir="/run/lading/mps", shm_dir="/dev/shm/lading-mps")
NODE = replace(
    inventory(gpus=(gpu(0), gpu(1))),
    isolations=(IsolationName.MPS, IsolationName.NONE, IsolationName.TOKENS),
    shares_per_gpu=100,
)
VIEW = View(inventory=NODE, now=NOW, boot_id=BOOT)
MPS_RULES = replace(RULES, isolations=(Unenforced(), Tokens(libraries="/lib", shares_dir="/shares"), Mps(folders=FOLDERS)))


def ask(gpus: str, *env: str, view: View = VIEW) -> Answer | Refusal:
    sandbox = Sandbox(id="s", uid="pod-1", name="p", namespace="default", annotations={"lading.dev/gpus": gpus})
    return decide(sandbox, Container(name="train", env=tuple(map(EnvVar, env))), MPS_RULES, view)


def answered(gpus: str, *env: str) -> Answer:
    answer = ask(gpus, *env)
    assert isinstance(answer, Answer), answer
    return answer


def env_of(answer: Answer) -> dict[str, str]:
    names = [env.name for env in answer.adjustment.env]
    assert len(names) == len(set(names))
    return {env.name: env.value for env in answer.adjustment.env}


def mps(number: int = 0, **amounts: int) -> GrantedDevices:
    return GrantedDevices(gpus=(GrantedGpu(uuid=uuid(number), isolation=IsolationName.MPS, **amounts),))  # type: ignore[arg-type]


def test_a_share_has_its_limits_and_the_pipe_of_its_card() -> None:
    answer = answered("1:memory=8Gi,core=30,limit=60")
    env = env_of(answer)
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/lading/mps"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert env["LADING_GPU_MEMORY_MIB"] == "8192"
    assert answer.adjustment.mounts[-2:] == (
        Mount("/run/lading/mps", f"/run/lading/mps/{uuid(1)}/pipe"),
        Mount("/dev/shm", f"/dev/shm/lading-mps/{uuid(1)}", readonly=False),
    )
    assert answer.share is None


def test_what_the_assignment_leaves_open_is_all_of_the_card() -> None:
    env = env_of(answered("0:core=30"))
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={gpu(0).usable_mib}M"


def test_the_pods_own_limits_are_replaced() -> None:
    answer = answered("0:memory=8Gi", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_CLIENT_PRIORITY", "LD_PRELOAD")
    env = env_of(answer)
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert env["CUDA_MPS_CLIENT_PRIORITY"] == ""
    assert "LD_PRELOAD" not in env
    assert answer.preloads == ("LD_PRELOAD",)


def test_shares_that_nothing_enforces_keep_the_pods_environment() -> None:
    answer = answered("0:memory=8Gi,isolation=none", "CUDA_MPS_CLIENT_PRIORITY", "LD_PRELOAD")
    assert "CUDA_MPS_CLIENT_PRIORITY" not in env_of(answer)
    assert answer.preloads == ()


def test_a_whole_card_has_no_mps() -> None:
    assert not any(name.startswith("CUDA_MPS_") for name in env_of(answered("0")))


@pytest.mark.parametrize("gpus", ["0:memory=1Gi,1:memory=1Gi", "0:memory=1Gi,1"])
def test_a_container_gets_one_card(gpus: str) -> None:
    refusal = ask(gpus)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.ISOLATION_UNAVAILABLE


def test_a_card_has_as_many_containers_as_a_server_has_clients() -> None:
    held = [holding_of(grant(f"pod-{n + 2}", devices=mps(memory_mib=1))) for n in range(48)]
    assert isinstance(ask("0:memory=1Gi", view=replace(VIEW, held=held[1:])), Answer)
    refusal = ask("0:memory=1Gi", view=replace(VIEW, held=held))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.CAPACITY_EXCEEDED


def test_a_card_whose_daemon_is_being_stopped_is_given_as_a_share_alone() -> None:
    rest = GrantedGpu(uuid=uuid(0), core_percent=0, isolation=IsolationName.MPS)
    stopping = Holding(
        pod=PodUid(""), pod_name="", container="", devices=GrantedDevices(gpus=(rest,)), program="the MPS daemon"
    )
    view = replace(VIEW, held=(stopping,))
    assert isinstance(ask("0:memory=8Gi,core=100", view=view), Answer)
    for gpus, reason in (("0", Reason.DEVICE_HELD), ("0:memory=1Gi,isolation=none", Reason.ISOLATION_CONFLICT)):
        refusal = ask(gpus, view=view)
        assert isinstance(refusal, Refusal)
        assert refusal.reason is reason
        assert "the MPS daemon holds" in refusal.message


def test_the_daemons_limits_fit_every_share_of_its_card() -> None:
    grants = [
        grant("a", devices=mps(memory_mib=1024, core_limit_percent=60)),
        grant("b", devices=mps(memory_mib=2048, core_percent=10, core_limit_percent=20)),
        grant("c", devices=mps(1, memory_mib=4096)),
        grant("d", devices=GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0), memory_mib=8192),))),
    ]
    assert largest_limits(grants, uuid(0)) == Limits(2048, 60)
    assert largest_limits(grants, uuid(1)) == Limits(4096, 100)
    assert largest_limits(grants, uuid(2)) is None
    assert largest_limits([grant(devices=mps(core_percent=5))], uuid(0)) == Limits(MAX_MEMORY_MIB, 100)
