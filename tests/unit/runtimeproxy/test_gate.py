"""One held call from bytes to outcome, with a real hook server where a hook is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lading.errors import RuntimeUnavailableError
from lading.http2.messages import GrpcStatus
from lading.log import Event, Log
from lading.reasons import Reason
from lading.vocabulary import MAX_KEYS
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy import gate as gate_module
from runtimeproxy.call.calls import HeldCall, Stage
from runtimeproxy.call.outcome import Answers, CallRefusal, Forward, Outcome, Refuse
from runtimeproxy.chain.chain import Chain, Question
from runtimeproxy.chain.registrations import FailurePolicy, HideUnassigned, Registration
from runtimeproxy.gate import LARGE, Gate
from tests.fakes.hook_server import HookServer
from tests.fakes.records import Records
from tests.unit.runtimeproxy.requests import (
    CREATE_GUARDED,
    CREATE_PLAIN,
    RUN_GUARDED,
    RUN_PLAIN,
    create,
    golden,
    held,
    method,
    run,
)

pytestmark = pytest.mark.usefixtures("message_size")

GUARDED = {"lading.dev/gpus": "0"}
UNREADABLE = b"\x12\x04\x0a\x02\xff\xff"  # a container's name that is no UTF-8
ASSIGNED = hook.Adjustment(
    env=[hook.EnvUpsert(name="NVIDIA_VISIBLE_DEVICES", value="void")], annotations={"lading.dev/grant": "{}"}
)


@pytest.fixture(params=["small", "large"])
def message_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every message as a small one, and as one that is looked at in a thread."""
    if request.param == "large":
        monkeypatch.setattr(gate_module, "LARGE", 1)
    return str(request.param)


class Runtime:
    """Knows the sandboxes that it was given, or does not answer."""

    def __init__(self, *known: cri.PodSandboxStatus, down: bool = False) -> None:
        self._known = {status.id: status for status in known}
        self._down = down
        self.asked: list[str] = []

    async def sandbox_status(self, sandbox_id: str) -> cri.PodSandboxStatusResponse | None:
        self.asked.append(sandbox_id)
        if self._down:
            raise RuntimeUnavailableError("cannot call PodSandboxStatus")
        status = self._known.get(sandbox_id)
        return cri.PodSandboxStatusResponse(status=status) if status else None


class Scripted(Chain):
    """A chain that answers without a socket."""

    def __init__(self, log: Log, answers: Answers | CallRefusal | Exception | None = None) -> None:
        super().__init__(log)
        self.answers = Answers() if answers is None else answers
        self.questions: list[Question] = []
        self.observations: list[tuple[str, Stage, hook.ObserveRequest]] = []

    async def collect_answers(
        self, stage: Stage, questions: Sequence[Question], deadline: float | None, *, keep_going: bool = False
    ) -> Answers | CallRefusal:
        self.questions += questions
        if not questions:
            return Answers()
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers

    def observe(self, registration: Registration, stage: Stage, request: hook.ObserveRequest) -> None:
        self.observations.append((registration.name, stage, request))


def registration(name: str = "10.json", **changes: object) -> Registration:
    base: dict[str, object] = {
        "name": name,
        "endpoint": "/run/h.sock",
        "hooks": frozenset({"PreCreateContainer"}),
        "prefixes": ("lading.dev/",),
    }
    return Registration(**{**base, **changes})  # type: ignore[arg-type]


def answered(*adjustments: tuple[str, hook.Adjustment], **forgiven: str) -> Answers:
    refusals = {name: CallRefusal(reason=reason, message="down", hook=name) for name, reason in forgiven.items()}
    return Answers(adjustments=adjustments, forgiven=refusals)


KNOWN = cri.PodSandboxStatus(id="s1", runtime_handler="nvidia")


def gate_with(log: Log, chain: Chain, *registrations: Registration, runtime: Runtime | None = None) -> Gate:
    gate = Gate(chain, runtime or Runtime(KNOWN), log, guarded_prefixes=["lading.dev/"])

    gate.cache.relist(0, [], [])

    async def use() -> None:
        gate.use(registrations)

    asyncio.run(use())
    return gate


def outcome_of(gate: Gate, name: str, message: bytes) -> Outcome:
    return asyncio.run(ended(gate, held(name, message)))


async def ended(gate: Gate, call: HeldCall) -> Outcome:
    ending = gate.handle(call)
    return ending if isinstance(ending, Forward | Refuse) else await ending()


def forwarded(outcome: Outcome) -> tuple[bytes | None, bool]:
    """Return the changed message, and whether the reply is observed."""
    assert isinstance(outcome, Forward), outcome
    return outcome.message, outcome.observe is not None


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, Refuse), outcome
    return outcome.message.split(": ")[1]


# Pods that concern no one


@pytest.mark.parametrize(("name", "message"), [("RunPodSandbox", RUN_PLAIN), ("CreateContainer", CREATE_PLAIN)])
def test_a_pod_that_concerns_no_one_is_forwarded_unread(log: Log, name: str, message: str, message_size: str) -> None:
    gate = gate_with(log, Scripted(log, RuntimeError("asked")), registration())
    assert forwarded(outcome_of(gate, name, golden(message))) == (None, False)
    assert callable(gate.handle(held(name, golden(message)))) is (message_size == "large")


def test_a_guarded_name_inside_a_value_guards_no_one(log: Log) -> None:
    gate = gate_with(log, Scripted(log, RuntimeError("asked")))
    message = create({"kubectl.kubernetes.io/last-applied-configuration": '{"lading.dev/gpus":"0"}'})
    assert forwarded(outcome_of(gate, "CreateContainer", message)) == (None, False)


def test_garbage_of_no_one_is_forwarded(log: Log) -> None:
    gate = gate_with(log, Scripted(log))
    for garbage in (b"\xff" * 9, UNREADABLE, UNREADABLE + b"\0" * LARGE):
        assert forwarded(outcome_of(gate, "CreateContainer", garbage)) == (None, False)


def test_a_large_message_is_searched_in_handle(log: Log) -> None:
    gate = gate_with(log, Scripted(log, answered(("10.json", ASSIGNED))), registration())
    big = {"note": "x" * LARGE}
    assert callable(gate.handle(held("CreateContainer", create(big))))
    assert forwarded(outcome_of(gate, "CreateContainer", create(big))) == (None, False)
    outcome = outcome_of(gate, "CreateContainer", create({**big, **GUARDED}))
    assert isinstance(outcome, Forward)
    assert outcome.message is not None


# Guarded pods


def test_a_guarded_container_is_adjusted(log: Log, records: Records) -> None:
    gate = gate_with(log, Scripted(log, answered(("10.json", ASSIGNED))), registration())
    gate.cache.learn_sandbox(hook.PodSandbox(id=cri.CreateContainerRequest.FromString(golden(CREATE_GUARDED)).pod_sandbox_id))
    outcome = outcome_of(gate, "CreateContainer", golden(CREATE_GUARDED))
    assert isinstance(outcome, Forward)
    assert outcome.observe
    config = cri.CreateContainerRequest.FromString(outcome.message or b"").config
    assert [e.value for e in config.envs if e.key == "NVIDIA_VISIBLE_DEVICES"] == [b"void"]
    assert config.annotations["lading.dev/grant"] == "{}"
    adjusted = records.fields(Event.CALL_ADJUSTED)[0]
    assert adjusted == {
        "method": "CreateContainer",
        "namespace": "default",
        "pod": "gpu-by-hand",
        "pod_uid": "e83331fd-32c0-4109-a0e0-1909dcf62934",
        "container": "train",
        "hook": "10.json",
    }
    assert Event.ENV_REPLACED in records.events()
    assert "10.96.0.1" not in records.text()


def test_without_an_adjustment_the_original_bytes_go_on(log: Log) -> None:
    gate = gate_with(log, Scripted(log, answered(("10.json", hook.Adjustment()))), registration())
    assert forwarded(outcome_of(gate, "CreateContainer", create(GUARDED))) == (None, True)


@pytest.mark.parametrize(
    "registrations",
    [
        (),
        (registration(hooks=frozenset({"PreRunPodSandbox", "PostCreateContainer"})),),
        (registration(prefixes=("other.dev/",)),),
        (registration(prefixes=None),),
        (registration(prefixes=("lading.dev/vfs",)),),
    ],
)
def test_a_guarded_container_that_no_one_answers_for_is_refused(log: Log, registrations: tuple[Registration, ...]) -> None:
    gate = gate_with(log, Scripted(log, answered(("10.json", ASSIGNED))), *registrations)
    outcome = outcome_of(gate, "CreateContainer", create(GUARDED))
    assert reason(outcome) == Reason.NO_REGISTRATION
    assert isinstance(outcome, Refuse)
    assert outcome.status == GrpcStatus.UNAVAILABLE
    assert "lading.dev/gpus" in outcome.message


def test_every_guarded_annotation_needs_someone(log: Log) -> None:
    gpus, vfs = registration("gpus", prefixes=("lading.dev/gpus",)), registration("vfs", prefixes=("lading.dev/vfs",))
    both = {**GUARDED, "lading.dev/vfs": "1"}
    chain = Scripted(log, answered(("gpus", hook.Adjustment()), ("vfs", hook.Adjustment())))
    assert isinstance(outcome_of(gate_with(log, chain, gpus, vfs), "CreateContainer", create(both)), Forward)
    assert reason(outcome_of(gate_with(log, chain, gpus), "CreateContainer", create(both))) == Reason.NO_REGISTRATION


def test_a_guarded_sandbox_may_start_without_a_hook(log: Log) -> None:
    gate = gate_with(log, Scripted(log))
    assert forwarded(outcome_of(gate, "RunPodSandbox", golden(RUN_GUARDED))) == (None, True)


def test_policy_ignore_does_not_make_a_guarded_container_bare(log: Log) -> None:
    chain = Scripted(log, answered(**{"10.json": Reason.HOOK_UNAVAILABLE}))
    gate = gate_with(log, chain, registration(policy=FailurePolicy.IGNORE))
    assert reason(outcome_of(gate, "CreateContainer", create(GUARDED))) == Reason.HOOK_UNAVAILABLE


def test_another_hook_that_answers_does_not_stand_in(log: Log) -> None:
    chain = Scripted(log, answered(("20.json", hook.Adjustment()), **{"10.json": Reason.HOOK_TIMEOUT}))
    gate = gate_with(log, chain, registration(policy=FailurePolicy.IGNORE), registration("20.json", prefixes=None))
    assert reason(outcome_of(gate, "CreateContainer", create(GUARDED))) == Reason.HOOK_TIMEOUT


def test_an_invalid_answer_under_policy_ignore_is_forgiven_but_not_for_a_guarded_pod(log: Log, records: Records) -> None:
    invalid = hook.Adjustment(annotations={"io.kubernetes.x": "y"})
    ignore = registration(policy=FailurePolicy.IGNORE, prefixes=("other.dev/", "lading.dev/"))
    gate = gate_with(log, Scripted(log, answered(("10.json", invalid))), ignore)
    assert forwarded(outcome_of(gate, "CreateContainer", create({"other.dev/x": ""}))) == (None, True)
    assert Event.HOOK_IGNORED in records.events()
    assert reason(outcome_of(gate, "CreateContainer", create(GUARDED))) == Reason.HOOK_INVALID


def test_a_hooks_refusal_reaches_the_caller(log: Log, records: Records) -> None:
    gate = gate_with(log, Scripted(log, CallRefusal(reason="device-held", message="by ns/x", hook="10.json")), registration())
    outcome = outcome_of(gate, "CreateContainer", create(GUARDED))
    assert outcome == Refuse(GrpcStatus.FAILED_PRECONDITION, "lading: device-held: by ns/x", "device-held")
    fields = records.fields(Event.CALL_REFUSED)[0]
    assert (fields["hook"], fields["reason"], fields["container"]) == ("10.json", "device-held", "c")


def test_hooks_that_conflict_refuse(log: Log) -> None:
    other = hook.Adjustment(env=[hook.EnvUpsert(name="NVIDIA_VISIBLE_DEVICES", value="all")])
    chain = Scripted(log, answered(("10.json", ASSIGNED), ("20.json", other)))
    gate = gate_with(log, chain, registration(), registration("20.json", prefixes=None))
    assert reason(outcome_of(gate, "CreateContainer", create(GUARDED))) == Reason.HOOK_CONFLICT


@pytest.mark.parametrize(
    "key", ["cdi.k8s.io/x", "org.systemd.property.ExecStart", "lading.dev/grant", "lading.dev/attachments"]
)
@pytest.mark.parametrize("where", ["RunPodSandbox", "CreateContainer", "container"])
def test_keys_that_only_the_node_writes_are_refused_on_guarded_pods(log: Log, key: str, where: str) -> None:
    message = run({**GUARDED, key: "v"}) if where == "RunPodSandbox" else create({**GUARDED, key: "v"})
    if where == "container":
        request = cri.CreateContainerRequest.FromString(create(GUARDED))
        request.config.annotations[key] = "v"
        message = request.SerializeToString()
    gate = gate_with(log, Scripted(log, answered(("10.json", ASSIGNED))), registration())
    outcome = outcome_of(gate, "RunPodSandbox" if where == "RunPodSandbox" else "CreateContainer", message)
    assert reason(outcome) == Reason.ANNOTATION_RESERVED
    assert isinstance(outcome, Refuse)
    assert key in outcome.message


@pytest.mark.parametrize(("name", "message"), [("RunPodSandbox", run), ("CreateContainer", create)])
def test_a_pod_with_more_guarded_keys_than_a_pod_may_have_is_refused(
    log: Log, name: str, message: Callable[[dict[str, str]], bytes]
) -> None:
    gate = gate_with(log, Scripted(log, answered(("10.json", hook.Adjustment()))), registration())
    keys = {f"lading.dev/later-{i}": "" for i in range(MAX_KEYS)}
    assert isinstance(outcome_of(gate, name, message(keys)), Forward)
    assert reason(outcome_of(gate, name, message(keys | GUARDED))) == Reason.ANNOTATION_MALFORMED


@pytest.mark.parametrize("key", ["lading.dev/grant", "lading.dev/attachments"])
def test_a_forged_grant_is_refused_on_any_container(log: Log, key: str) -> None:
    request = cri.CreateContainerRequest.FromString(create())
    request.config.annotations[key] = "{}"
    assert reason(outcome_of(gate_with(log, Scripted(log)), "CreateContainer", request.SerializeToString())) == (
        Reason.ANNOTATION_RESERVED
    )


def test_a_device_plugins_annotation_on_another_pod_is_left_alone(log: Log) -> None:
    gate = gate_with(log, Scripted(log), registration(prefixes=None))
    assert forwarded(outcome_of(gate, "CreateContainer", create({"cdi.k8s.io/x": "v"}))) == (None, True)


@pytest.mark.parametrize("name", ["RunPodSandbox", "CreateContainer"])
def test_a_guarded_request_that_cannot_be_read_is_refused(log: Log, name: str) -> None:
    outcome = outcome_of(gate_with(log, Scripted(log)), name, b"\xff lading.dev/gpus")
    assert isinstance(outcome, Refuse)
    assert reason(outcome) == Reason.REQUEST_UNREADABLE
    assert outcome.status == GrpcStatus.INVALID_ARGUMENT


@pytest.mark.parametrize("missing", ["sandbox_config", "metadata"])
def test_a_container_without_its_sandboxs_configuration_is_refused(log: Log, missing: str) -> None:
    chain = Scripted(log, answered(("10.json", ASSIGNED)))
    gate = gate_with(log, chain, registration())
    gate.cache.learn_sandbox(hook.PodSandbox(id="s1", annotations=GUARDED))
    request = cri.CreateContainerRequest.FromString(create(GUARDED))
    (request if missing == "sandbox_config" else request.sandbox_config).ClearField(missing)
    assert reason(outcome_of(gate, "CreateContainer", request.SerializeToString())) == Reason.REQUEST_UNREADABLE
    assert not chain.questions


def test_restoring_a_guarded_pod_is_refused_and_any_other_is_not(log: Log) -> None:
    gate = gate_with(log, Scripted(log, RuntimeError("asked")), registration(prefixes=None))
    assert forwarded(outcome_of(gate, "RestorePod", b"whatever")) == (None, False)
    assert forwarded(outcome_of(gate, "RestorePod", b"x" * LARGE)) == (None, False)
    assert reason(outcome_of(gate, "RestorePod", create(GUARDED))) == Reason.CREATED_ANOTHER_WAY


# Facts about its sandbox that the request does not carry


def test_the_runtime_is_asked_once_about_a_sandbox_that_is_not_known(log: Log) -> None:
    chain, runtime = Scripted(log, answered(("10.json", ASSIGNED))), Runtime(KNOWN)
    gate = gate_with(log, chain, registration(), runtime=runtime)
    for _ in range(2):
        assert isinstance(outcome_of(gate, "CreateContainer", create(GUARDED)), Forward)
    assert runtime.asked == ["s1"]
    assert [q.request.sandbox.runtime_handler for q in chain.questions] == ["nvidia", "nvidia"]


@pytest.mark.parametrize("runtime", [Runtime(), Runtime(down=True)])
def test_a_guarded_container_of_a_sandbox_that_no_one_knows_is_refused(log: Log, runtime: Runtime) -> None:
    gate = gate_with(log, Scripted(log, answered(("10.json", ASSIGNED))), registration(), runtime=runtime)
    assert reason(outcome_of(gate, "CreateContainer", create(GUARDED))) == Reason.NOT_RECONCILED


def test_any_other_container_is_not(log: Log) -> None:
    gate = gate_with(log, Scripted(log), registration(prefixes=None), runtime=Runtime(down=True))
    assert forwarded(outcome_of(gate, "CreateContainer", create())) == (None, True)


@pytest.mark.parametrize("learn", ["observed", "listed", "asked"])
def test_a_container_whose_pod_lost_a_guarded_key_since_its_sandbox_was_made_is_refused(log: Log, learn: str) -> None:
    """However the proxy knows of the sandbox: it made it, it found it in the runtime's list, or it asks for it now."""
    runtime = Runtime(cri.PodSandboxStatus(id="s1", annotations={**GUARDED, "lading.dev/vfs": "1"}))
    gate = gate_with(log, Scripted(log, answered(("10.json", hook.Adjustment()))), registration(), runtime=runtime)
    if learn == "observed":
        made = cri.RunPodSandboxResponse(pod_sandbox_id="s1").SerializeToString()
        observe(gate, "RunPodSandbox", run({**GUARDED, "lading.dev/vfs": "1"}), made)
    elif learn == "listed":
        listed = cri.PodSandbox(id="s1", annotations={**GUARDED, "lading.dev/vfs": "1"})
        gate.cache.relist(gate.cache.mark(), [listed], [])
    assert reason(outcome_of(gate, "CreateContainer", create(GUARDED))) == Reason.ASSIGNMENT_CHANGED
    if learn != "asked":  # else nothing in the request says that there is something to ask
        assert reason(outcome_of(gate, "CreateContainer", create())) == Reason.ASSIGNMENT_CHANGED
    assert isinstance(outcome_of(gate, "CreateContainer", create({**GUARDED, "lading.dev/vfs": "2"})), Forward)


@pytest.mark.parametrize("listed", [False, True])
def test_an_unknown_sandbox_is_looked_up_until_the_runtimes_list_was_read(log: Log, listed: bool) -> None:
    """After a restart of the proxy, whose first list failed."""
    runtime = Runtime(cri.PodSandboxStatus(id="s1", annotations=GUARDED))
    gate = gate_with(log, Scripted(log), registration(), runtime=runtime)
    gate.cache.listed = listed
    outcome = outcome_of(gate, "CreateContainer", create())
    assert isinstance(outcome, Forward) if listed else reason(outcome) == Reason.ASSIGNMENT_CHANGED


def test_removing_the_annotation_from_a_running_pod_unguards_nothing(log: Log) -> None:
    gate = gate_with(log, Scripted(log))
    gate.cache.learn_sandbox(hook.PodSandbox(id="s1", annotations=GUARDED))
    assert reason(outcome_of(gate, "CreateContainer", create())) == Reason.NO_REGISTRATION
    without = cri.CreateContainerRequest(pod_sandbox_id="s1").SerializeToString()
    assert reason(outcome_of(gate, "CreateContainer", without)) == Reason.REQUEST_UNREADABLE


# Static adjustments


HIDING = HideUnassigned(env={"NVIDIA_VISIBLE_DEVICES": "void"}, exempt_namespaces=frozenset({"kube-system"}))


def visible(outcome: Outcome) -> list[bytes]:
    assert isinstance(outcome, Forward)
    envs = cri.CreateContainerRequest.FromString(outcome.message or b"").config.envs
    return [env.value for env in envs if env.key == "NVIDIA_VISIBLE_DEVICES"]


def test_cards_are_hidden_from_a_pod_that_asks_for_none_without_a_call(log: Log) -> None:
    chain = Scripted(log)
    gate = gate_with(log, chain, registration(hide_unassigned=(HIDING,)))
    assert visible(outcome_of(gate, "CreateContainer", golden(CREATE_PLAIN))) == [b"void"]
    assert forwarded(outcome_of(gate, "CreateContainer", create(namespace="kube-system"))) == (None, False)
    assert forwarded(outcome_of(gate, "RunPodSandbox", golden(RUN_PLAIN))) == (None, False)
    assert chain.questions == []


def test_a_pod_that_asks_is_the_hooks_affair(log: Log) -> None:
    gate = gate_with(log, Scripted(log, answered(("10.json", hook.Adjustment()))), registration(hide_unassigned=(HIDING,)))
    assert forwarded(outcome_of(gate, "CreateContainer", create(GUARDED))) == (None, True)


def test_what_cannot_be_read_cannot_be_hidden_from(log: Log) -> None:
    gate = gate_with(log, Scripted(log), registration(hide_unassigned=(HIDING,)))
    assert reason(outcome_of(gate, "CreateContainer", UNREADABLE)) == Reason.REQUEST_UNREADABLE
    assert forwarded(outcome_of(gate, "RunPodSandbox", b"\xff")) == (None, False)


# Teardown, and the stages between


def known_pod(gate: Gate) -> None:
    gate.cache.learn_sandbox(hook.PodSandbox(id="s1", name="p", annotations=GUARDED))
    gate.cache.learn_container("s1", hook.Container(id="c1", name="c"))


TEARDOWN = {
    "StopPodSandbox": cri.StopPodSandboxRequest(pod_sandbox_id="s1"),
    "RemovePodSandbox": cri.RemovePodSandboxRequest(pod_sandbox_id="s1"),
    "StopContainer": cri.StopContainerRequest(container_id="c1"),
    "RemoveContainer": cri.RemoveContainerRequest(container_id="c1"),
}
UNHELPFUL: list[Answers | Exception] = [
    RuntimeError("broken"),
    answered(("10.json", ASSIGNED)),
    answered(**{"10.json": Reason.HOOK_UNAVAILABLE}),
]


@pytest.mark.parametrize("name", TEARDOWN)
def test_teardown_is_asked_about_by_id_and_never_refused(log: Log, name: str) -> None:
    message = TEARDOWN[name].SerializeToString()
    for answers in UNHELPFUL:
        chain = Scripted(log, answers)
        gate = gate_with(log, chain, registration(hooks=frozenset({f"Pre{name}"})))
        known_pod(gate)
        assert forwarded(outcome_of(gate, name, message)) == (None, name.startswith("Remove"))
        assert [q.request.sandbox.name for q in chain.questions] == ["p"]


@pytest.mark.parametrize("name", ["StopPodSandbox", "StopContainer"])
def test_a_pod_that_was_annotated_after_its_sandbox_was_made_is_torn_down_with_its_hook(log: Log, name: str) -> None:
    chain = Scripted(log, answered(("10.json", ASSIGNED)))
    gate = gate_with(log, chain, registration(hooks=frozenset({"PreCreateContainer", f"Pre{name}"})))
    gate.cache.learn_sandbox(hook.PodSandbox(id="s1", runtime_handler="nvidia"))
    observe(gate, "CreateContainer", create(GUARDED), cri.CreateContainerResponse(container_id="c1").SerializeToString())
    assert forwarded(outcome_of(gate, name, TEARDOWN[name].SerializeToString())) == (None, False)
    assert [q.request.stage for q in chain.questions] == [hook.CREATE_CONTAINER, hook.Stage.Value(Stage(name).name)]


def test_a_grant_in_a_listed_container_is_enough_to_ask_at_teardown(log: Log) -> None:
    chain = Scripted(log)
    gate = gate_with(log, chain, registration(hooks=frozenset({"PreStopPodSandbox"})))
    container = cri.Container(id="c1", pod_sandbox_id="s1", annotations={"lading.dev/grant": "{}"})
    gate.cache.relist(gate.cache.mark(), [cri.PodSandbox(id="s1")], [container])
    outcome_of(gate, "StopPodSandbox", TEARDOWN["StopPodSandbox"].SerializeToString())
    assert len(chain.questions) == 1


@pytest.mark.parametrize("name", TEARDOWN)
def test_garbage_in_teardown_is_forwarded(log: Log, name: str) -> None:
    gate = gate_with(log, Scripted(log), registration(hooks=frozenset({f"Pre{name}"}), prefixes=None))
    outcome = outcome_of(gate, name, b"\xff lading.dev/")
    assert isinstance(outcome, Forward)
    assert outcome.message is None


@pytest.mark.parametrize("name", TEARDOWN)
def test_teardown_of_what_is_not_known_asks_no_one_with_prefixes(log: Log, name: str, message_size: str) -> None:
    gate = gate_with(log, Scripted(log, RuntimeError("asked")), registration(hooks=frozenset({f"Pre{name}"})))
    call = held(name, TEARDOWN[name].SerializeToString())
    assert callable(gate.handle(call)) is (message_size == "large")
    assert forwarded(asyncio.run(ended(gate, call))) == (None, name.startswith("Remove"))


def test_a_start_can_be_refused_and_an_update_changed(log: Log) -> None:
    chain = Scripted(log, CallRefusal(reason="sandbox-stopped", message="no"))
    gate = gate_with(log, chain, registration(hooks=frozenset({"PreStartContainer", "PreUpdateContainerResources"})))
    known_pod(gate)
    assert reason(outcome_of(gate, "StartContainer", cri.StartContainerRequest(container_id="c1").SerializeToString())) == (
        "sandbox-stopped"
    )
    chain.answers = answered(("10.json", hook.Adjustment(resources=hook.LinuxResources(cpu_shares=9))))
    update = cri.UpdateContainerResourcesRequest(container_id="c1", linux=cri.LinuxContainerResources(cpu_quota=5))
    outcome = outcome_of(gate, "UpdateContainerResources", update.SerializeToString())
    assert isinstance(outcome, Forward)
    changed = cri.UpdateContainerResourcesRequest.FromString(outcome.message or b"").linux
    assert (changed.cpu_shares, changed.cpu_quota) == (9, 5)
    assert chain.questions[-1].request.container.resources.cpu_quota == 5
    assert chain.questions[-1].request.container.name == "c"


# Exactly one outcome, whatever raises


def test_an_error_of_lading_refuses_a_guarded_pod_and_forwards_any_other(log: Log, records: Records) -> None:
    gate = gate_with(log, Scripted(log, ValueError("secret-value")), registration(prefixes=("lading.dev/", "other.dev/")))
    outcome = outcome_of(gate, "CreateContainer", create(GUARDED))
    assert isinstance(outcome, Refuse)
    assert outcome.status == GrpcStatus.INTERNAL
    assert forwarded(outcome_of(gate, "CreateContainer", create({"other.dev/x": ""}, sandbox_id="s2"))) == (None, False)
    assert "secret-value" not in records.text() + outcome.message


def test_an_error_while_judging_an_error_counts_as_guarded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gate_with(log, Scripted(log), registration(prefixes=None))

    def broken(_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(gate.cache, "sandbox", broken)
    outcome = outcome_of(gate, "CreateContainer", create())
    assert isinstance(outcome, Refuse)
    assert outcome.status == GrpcStatus.INTERNAL


def test_a_cancelled_call_is_cancelled_and_said(log: Log, records: Records) -> None:
    class Hanging(Scripted):
        async def collect_answers(self, *_: object, **__: object) -> Answers | CallRefusal:
            await asyncio.Event().wait()
            raise AssertionError

    gate = gate_with(log, Hanging(log), registration())

    async def body() -> None:
        task = asyncio.create_task(ended(gate, held("CreateContainer", create(GUARDED))))
        while not task.done():
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
    assert records.events() == [Event.CALL_CANCELLED]


# Observing


def observe(gate: Gate, name: str, message: bytes, reply: bytes = b"", status: int = 0) -> None:
    outcome = outcome_of(gate, name, message)
    assert isinstance(outcome, Forward)
    if outcome.observe:
        gate.observed(method(name), outcome.observe, status, reply)


def test_a_pods_life_is_known_and_forgotten(log: Log) -> None:
    gate = gate_with(log, Scripted(log, answered(("10.json", ASSIGNED))), registration())
    observe(
        gate,
        "RunPodSandbox",
        run(GUARDED, handler="nvidia"),
        cri.RunPodSandboxResponse(pod_sandbox_id="s1").SerializeToString(),
    )
    observe(gate, "CreateContainer", create(GUARDED), cri.CreateContainerResponse(container_id="c1").SerializeToString())
    found = gate.cache.container("c1")
    assert found is not None
    assert (found[0].name, found[0].runtime_handler, found[1].name) == ("p", "nvidia", "c")
    assert found[1].annotations["lading.dev/grant"] == "{}"
    observe(gate, "RemoveContainer", TEARDOWN["RemoveContainer"].SerializeToString(), status=5)
    assert gate.cache.containers == 1
    observe(gate, "RemoveContainer", TEARDOWN["RemoveContainer"].SerializeToString())
    assert gate.cache.containers == 0
    observe(gate, "RemovePodSandbox", TEARDOWN["RemovePodSandbox"].SerializeToString())
    assert len(gate.cache) == 0


def test_pods_that_concern_no_one_are_not_kept(log: Log) -> None:
    gate = gate_with(log, Scripted(log), registration(hide_unassigned=(HIDING,)))
    observe(gate, "RunPodSandbox", run(), cri.RunPodSandboxResponse(pod_sandbox_id="s1").SerializeToString())
    observe(gate, "CreateContainer", create(), cri.CreateContainerResponse(container_id="c1").SerializeToString())
    assert (len(gate.cache), gate.cache.containers) == (0, 0)


def test_a_failed_call_teaches_nothing(log: Log) -> None:
    gate = gate_with(log, Scripted(log))
    observe(gate, "RunPodSandbox", run(GUARDED), status=13)
    assert len(gate.cache) == 0


def test_hooks_are_told_with_id_and_status(log: Log) -> None:
    chain = Scripted(log, answered(("10.json", hook.Adjustment())))
    points = frozenset({"PreCreateContainer", "PostCreateContainer", "PostRemovePodSandbox"})
    gate = gate_with(log, chain, registration(hooks=points))
    observe(gate, "CreateContainer", create(GUARDED), cri.CreateContainerResponse(container_id="c1").SerializeToString())
    observe(gate, "CreateContainer", create(GUARDED), status=2)
    observe(gate, "RemovePodSandbox", TEARDOWN["RemovePodSandbox"].SerializeToString())
    told = [(o[2].container.id, o[2].sandbox.id, o[2].sandbox.name, o[2].grpc_status) for o in chain.observations]
    assert told == [("c1", "s1", "p", 0), ("", "s1", "p", 2), ("", "s1", "p", 0)]
    assert [o[1] for o in chain.observations][-1] is Stage.REMOVE_POD_SANDBOX


def test_a_reply_that_cannot_be_read_is_survived(log: Log, records: Records) -> None:
    gate = gate_with(log, Scripted(log))
    observe(gate, "RunPodSandbox", run(GUARDED), b"\xff")
    assert len(gate.cache) == 0
    assert records.fields(Event.CALL_FORWARDED)[-1]["reason"] == Reason.INTERNAL


def test_a_change_is_logged_once_the_call_is_on_its_way_and_a_refusal_at_once(log: Log, records: Records) -> None:
    later: list[Callable[[], None]] = []
    chain = Scripted(log, answered(("10.json", ASSIGNED)))
    gate = Gate(chain, Runtime(KNOWN), log, guarded_prefixes=["lading.dev/"], defer=later.append)
    gate.cache.relist(0, [], [])
    assert reason(outcome_of(gate, "CreateContainer", create(GUARDED))) == Reason.NO_REGISTRATION
    assert (records.events().count(Event.CALL_REFUSED), later) == (1, [])

    async def use() -> None:
        gate.use((registration(),))

    asyncio.run(use())
    message, _ = forwarded(outcome_of(gate, "CreateContainer", create(GUARDED)))
    assert message is not None
    assert Event.CALL_ADJUSTED not in records.events()
    for do in later:
        do()
    assert Event.CALL_ADJUSTED in records.events()


# With a hook server


@asynccontextmanager
async def serving(short_folder: Path, log: Log) -> AsyncIterator[tuple[Gate, HookServer]]:
    chain = Chain(log)
    gate = Gate(chain, Runtime(KNOWN), log, guarded_prefixes=["lading.dev/"])
    mine = registration(endpoint=str(short_folder / "a"), env_values=frozenset({"SEEN"}))
    gate.use((mine,))
    async with HookServer(short_folder / "a") as server:
        yield gate, server
        await chain.close()


def test_a_hook_is_shown_names_and_the_values_that_it_named(short_folder: Path, log: Log) -> None:
    async def body() -> None:
        async with serving(short_folder, log) as (gate, server):
            server.adjust(ASSIGNED)
            request = cri.CreateContainerRequest.FromString(create(GUARDED))
            request.config.envs.extend([cri.KeyValue(key="SEEN", value=b"1"), cri.KeyValue(key="SECRET", value=b"2")])
            outcome = await ended(gate, held("CreateContainer", request.SerializeToString()))
            assert isinstance(outcome, Forward)
            assert outcome.message is not None
            asked = server.asked[0]
            assert {env.name: env.value for env in asked.container.env} == {"SEEN": "1", "SECRET": ""}
            assert asked.traceparent == "00-ab-cd-01"
            assert asked.sandbox.id == "s1"

    asyncio.run(body())


def test_pods_of_others_never_notice_that_a_hook_is_down(short_folder: Path, log: Log) -> None:
    async def body() -> None:
        async with serving(short_folder, log) as (gate, server):
            await server.stop()
            now = asyncio.get_running_loop().time
            started = now()
            for message in (create(), create({"other.dev/x": "lading.dev/"})):
                assert forwarded(await ended(gate, held("CreateContainer", message))) == (None, False)
            assert now() - started < 1  # the hook's deadline is longer
            call = held("CreateContainer", create(GUARDED), now() + 0.4)
            assert reason(await ended(gate, call)) == Reason.HOOK_UNAVAILABLE

    asyncio.run(body())
