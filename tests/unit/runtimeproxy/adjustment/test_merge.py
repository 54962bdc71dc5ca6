import pytest

from lading.reasons import Reason
from lading.vocabulary import ATTACHMENTS, GRANT
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.adjustment.merge import Merged, merge
from runtimeproxy.call.calls import Stage
from runtimeproxy.call.outcome import CallRefusal

A, B = "10-a.json", "20-b.json"
CREATE = Stage.CREATE_CONTAINER


def env(**values: str) -> hook.Adjustment:
    return hook.Adjustment(env=[hook.EnvUpsert(name=n, value=v) for n, v in values.items()])


def device(path: str, permissions: str = "rw", host_path: str = "/dev/x") -> hook.Adjustment:
    return hook.Adjustment(devices=[hook.Device(container_path=path, host_path=host_path, permissions=permissions)])


def mount(path: str, host_path: str = "/opt/lib", *, readonly: bool = True) -> hook.Adjustment:
    return hook.Adjustment(mounts=[hook.Mount(container_path=path, host_path=host_path, readonly=readonly)])


def resources(**values: int) -> hook.Adjustment:
    made = hook.LinuxResources()
    for name, value in values.items():
        setattr(made, name, value)
    return hook.Adjustment(resources=made)


def merged(*adjustments: tuple[str, hook.Adjustment], stage: Stage = CREATE) -> Merged:
    result = merge(adjustments, stage)
    assert isinstance(result, Merged), result
    return result


def refused(*adjustments: tuple[str, hook.Adjustment], stage: Stage = CREATE) -> CallRefusal:
    result = merge(adjustments, stage)
    assert isinstance(result, CallRefusal), result
    return result


def test_disjoint_hooks_are_joined_in_hook_order_with_owners() -> None:
    result = merged((A, env(X="1")), (B, env(Y="2")))
    assert [(e.name, e.value) for e in result.adjustment.env] == [("X", "1"), ("Y", "2")]
    assert result.owners == {("env", "X"): A, ("env", "Y"): B}


def test_nothing_is_empty() -> None:
    assert merged().empty
    assert merged((A, hook.Adjustment())).empty
    assert not merged((A, env(X=""))).empty


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        (env(X="1"), env(X="2"), "X"),
        (env(X="1"), hook.Adjustment(env_remove=["X"]), "X"),
        (mount("/lib"), mount("/lib", "/other"), "/lib"),
        (mount("/lib"), mount("/lib", readonly=False), "/lib"),
        (device("/dev/a"), device("/dev/a", "r"), "/dev/a"),
        (device("/dev/a"), mount("/dev/a"), "/dev/a"),
        (mount("/dev/a"), device("/dev/a"), "/dev/a"),
        (hook.Adjustment(annotations={"k": "1"}), hook.Adjustment(annotations={"k": "2"}), "k"),
        (hook.Adjustment(labels={"k": "1"}), hook.Adjustment(labels={"k": "2"}), "k"),
        (resources(cpu_shares=1), resources(cpu_shares=2), "cpu_shares"),
        (resources(cpu_quota=0), resources(cpu_quota=1), "cpu_quota"),
        (
            hook.Adjustment(resources=hook.LinuxResources(unified={"memory.high": "1"})),
            hook.Adjustment(resources=hook.LinuxResources(unified={"memory.high": "2"})),
            "memory.high",
        ),
    ],
)
def test_a_second_claimant_is_a_conflict_that_names_both_and_the_field(
    first: hook.Adjustment, second: hook.Adjustment, field: str
) -> None:
    refusal = refused((A, first), (B, second))
    assert refusal.reason == Reason.HOOK_CONFLICT
    for name in (A, B, field):
        assert name in refusal.message


@pytest.mark.parametrize(
    "adjustment",
    [
        env(X="1"),
        hook.Adjustment(env_remove=["X"]),
        mount("/lib"),
        device("/dev/a"),
        hook.Adjustment(cdi_devices=["nvidia.com/gpu=GPU-1"]),
        hook.Adjustment(annotations={"k": "1"}),
        hook.Adjustment(add_capabilities=["IPC_LOCK"]),
        resources(oom_score_adj=0),
    ],
)
def test_identical_claims_agree(adjustment: hook.Adjustment) -> None:
    result = merged((A, adjustment), (B, adjustment))
    assert result.adjustment == adjustment
    assert set(result.owners.values()) == {A}


def test_permissions_are_a_set() -> None:
    result = merged((A, device("/dev/a", "wr")), (B, device("/dev/a", "rw")))
    assert [d.permissions for d in result.adjustment.devices] == ["rw"]


def test_a_hook_that_contradicts_itself_is_invalid() -> None:
    twice = env(X="1")
    twice.env_remove.append("X")
    refusal = refused((A, twice))
    assert refusal.reason == Reason.HOOK_INVALID
    assert A in refusal.message


@pytest.mark.parametrize(
    "adjustment",
    [
        env(**{"": "v"}),
        env(**{"A=B": "v"}),
        env(**{"A\0": "v"}),
        env(X="a\0b"),
        hook.Adjustment(env_remove=[""]),
        mount("lib"),
        mount("/"),
        mount("/a/../b"),
        mount("/a//b"),
        mount("//a"),
        mount("/a/"),
        mount("/a", "../etc"),
        mount("/a", ""),
        device("/dev/../etc/shadow"),
        device("/dev/a", host_path="dev/a"),
        device("/dev/a", ""),
        device("/dev/a", "rx"),
        device("/dev/a", "rr"),
        hook.Adjustment(cdi_devices=["nvidia.com/gpu"]),
        hook.Adjustment(cdi_devices=["gpu=all"]),
        hook.Adjustment(cdi_devices=["nvidia.com/gpu=a b"]),
        hook.Adjustment(annotations={"": "v"}),
        hook.Adjustment(annotations={"io.kubernetes.container.hash": "v"}),
        hook.Adjustment(annotations={"cdi.k8s.io/x": "v"}),
        hook.Adjustment(annotations={"cdi.k8s.io/": "v"}),
        hook.Adjustment(annotations={"org.systemd.property.ExecStart": "v"}),
        hook.Adjustment(annotations={"org.systemd.property.": "v"}),
        hook.Adjustment(labels={"io.kubernetes.pod.uid": "v"}),
        hook.Adjustment(add_capabilities=["CAP_IPC_LOCK"]),
        hook.Adjustment(add_capabilities=[""]),
        hook.Adjustment(resources=hook.LinuxResources(unified={"../memory.max": "1"})),
    ],
)
def test_what_no_hook_may_do_is_refused_and_names_the_hook(adjustment: hook.Adjustment) -> None:
    refusal = refused((A, env(OK="1")), (B, adjustment))
    assert refusal.reason == Reason.HOOK_INVALID
    assert refusal.hook == B
    assert B in refusal.message


@pytest.mark.parametrize("key", [GRANT, ATTACHMENTS])
def test_a_hook_may_write_ladings_own_annotations(key: str) -> None:
    assert dict(merged((A, hook.Adjustment(annotations={key: "v"}))).adjustment.annotations) == {key: "v"}


@pytest.mark.parametrize("name", ["nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1:2", "vendor/class=a", "a.b/c_d=MIG-1.2"])
def test_cdi_names_of_the_right_form_pass(name: str) -> None:
    assert list(merged((A, hook.Adjustment(cdi_devices=[name]))).adjustment.cdi_devices) == [name]


@pytest.mark.parametrize(
    ("stage", "adjustment", "fits"),
    [
        (Stage.RUN_POD_SANDBOX, hook.Adjustment(annotations={"k": "v"}), True),
        (Stage.RUN_POD_SANDBOX, hook.Adjustment(labels={"k": "v"}), True),
        (Stage.RUN_POD_SANDBOX, device("/dev/a"), False),
        (Stage.RUN_POD_SANDBOX, env(X="1"), False),
        (Stage.UPDATE_CONTAINER_RESOURCES, resources(cpu_shares=2), True),
        (Stage.UPDATE_CONTAINER_RESOURCES, env(X="1"), False),
        (Stage.START_CONTAINER, env(X="1"), False),
        (Stage.STOP_CONTAINER, hook.Adjustment(annotations={"k": "v"}), False),
    ],
)
def test_a_stage_takes_what_its_request_carries(stage: Stage, adjustment: hook.Adjustment, fits: bool) -> None:
    assert isinstance(merge([(A, adjustment)], stage), Merged) is fits
