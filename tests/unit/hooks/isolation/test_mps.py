"""Test what a container with a share by MPS gets, and the limits of a card's daemon."""

from dataclasses import replace
from typing import Any

import pytest

from hooks.grant.decide import View, decide
from hooks.isolation.library import ShareLibrary
from hooks.isolation.mps import Limits, Mps, MpsFolders, largest_limits
from hooks.isolation.tokens import Tokens
from hooks.isolation.unenforced import Unenforced
from hooks.model.assignment import GrantedDevices, GrantedGpu, Refusal
from hooks.model.container import Adjustment, Answer, Container, EnvVar, Mount, Sandbox
from hooks.model.grant import Holding, holding_of
from hooks.ports import Card, Enforced
from lading.devices.assignment import MAX_MEMORY_MIB
from lading.devices.isolation import IsolationName
from lading.reasons import Reason
from lading.sharegrant import SharedGpu
from lading.vocabulary import PodUid
from tests.fakes.holders import BOOT, NOW, grant
from tests.unit.hooks.inventories import gpu, inventory, node, uuid
from tests.unit.hooks.rules import RULES

LIBRARY = ShareLibrary(libraries="/lib", shares_dir="/shares")
FOLDERS = MpsFolders(mps_dir="/run/lading/mps", shm_dir="/dev/shm/lading-mps")
NODE = replace(
    inventory(gpus=(gpu(0), gpu(1))),
    isolations=(IsolationName.MPS, IsolationName.NONE, IsolationName.TOKENS),
    shares_per_gpu=100,
)
VIEW = View(inventory=NODE, now=NOW, boot_id=BOOT)
MPS_RULES = replace(RULES, isolations=(Unenforced(), Tokens(library=LIBRARY), Mps(folders=FOLDERS)))


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


CUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
BY_LIBRARY = Mps(folders=FOLDERS, library=LIBRARY)


def card(number: int = 0, *, context_mib: int = 0, limits_memory: bool = False, **granted: Any) -> Card:
    given = GrantedGpu(uuid=uuid(number), isolation=IsolationName.MPS, **granted)
    shown = replace(gpu(number), context_mib=context_mib, limits_memory=limits_memory)
    return Card(granted=given, gpu=shown, node=node(f"/dev/nvidia{number}"), mig=None)


def enforce(*cards: Card, mounts: tuple[Mount, ...] = (Mount(CUDA, f"/driver{CUDA}"),)) -> Enforced | Refusal:
    sandbox = Sandbox(id="s", uid="pod-1", name="p", namespace="ml")
    return BY_LIBRARY.enforce(cards, sandbox, Container(name="train"), Adjustment(mounts=mounts))


def test_a_container_that_the_library_keeps_to_its_memory_has_the_pipe_and_a_grant_without_turns() -> None:
    enforced = enforce(card(memory_mib=8192, core_percent=30, core_limit_percent=60, limits_memory=True))
    assert isinstance(enforced, Enforced), enforced
    env = {env.name: env.value for env in enforced.adjustment.env}
    assert (env["CUDA_MPS_PIPE_DIRECTORY"], env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) == ("/run/lading/mps", "60")
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"  # for a process that takes another library
    mounts = {mount.container_path: mount.host_path for mount in enforced.adjustment.mounts}
    assert mounts[CUDA] == "/lib/libcuda.so.1"
    assert mounts["/.lading/gpu/real/libcuda.so.1"] == f"/driver{CUDA}"
    assert mounts["/.lading/gpu/share"] == "/shares/pod-1_train"
    assert mounts["/run/lading/mps"] == f"/run/lading/mps/{uuid(0)}/pipe"
    assert enforced.share is not None
    assert enforced.share.gpus == (
        SharedGpu(
            uuid=uuid(0), memory_mib=8192, total_mib=gpu(0).usable_mib, request_percent=30, limit_percent=60, turns=False
        ),
    )


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (enforce(card(memory_mib=1000), card(1, memory_mib=1000)), "one card"),
        (enforce(card(memory_mib=1000), mounts=()), "gets no libcuda.so"),
        (enforce(card(memory_mib=100, context_mib=518)), "takes 518 MiB"),
    ],
)
def test_what_the_library_cannot_keep_is_refused(result: Enforced | Refusal, cause: str) -> None:
    assert isinstance(result, Refusal)
    assert result.reason is Reason.ISOLATION_UNAVAILABLE
    assert cause in result.message


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
