import pytest

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.call_context import SANDBOX_STAGES, cached_keys, context_made, context_of
from runtimeproxy.call.calls import Stage, read_id
from runtimeproxy.call.sandbox_cache import SandboxCache
from tests.unit.runtimeproxy.requests import create, golden, goldens, method, run


def known() -> SandboxCache:
    made = SandboxCache()
    made.learn_sandbox(hook.PodSandbox(id="s1", name="p", runtime_handler="nvidia", annotations={"then": "1"}))
    made.learn_container("s1", hook.Container(id="c1", name="c"))
    return made


@pytest.mark.parametrize("name", [n for s in Stage for n in goldens(s.value)])
def test_every_real_request_has_a_context(name: str) -> None:
    of = method(name.partition("-")[0])
    request = of.parse(golden(name))
    context = context_of(request, SandboxCache())
    if isinstance(request, cri.RunPodSandboxRequest):
        assert context.sandbox.uid == request.config.metadata.uid != ""
    elif of.stage in SANDBOX_STAGES or of.stage is Stage.CREATE_CONTAINER:
        assert context.sandbox.id == read_id(golden(name)) != ""
    else:
        assert context.container is not None
        assert context.container.id == read_id(golden(name)) != ""


def test_a_container_has_its_sandboxs_handler_and_the_keys_of_then_and_now() -> None:
    context = context_of(cri.CreateContainerRequest.FromString(create({"now": "1"})), known())
    assert context.sandbox.runtime_handler == "nvidia"
    assert dict(context.sandbox.annotations) == {"now": "1"}
    assert context.keys == {"then", "now"}


def test_without_a_sandbox_in_the_request_the_known_one_is_meant() -> None:
    context = context_of(cri.CreateContainerRequest(pod_sandbox_id="s1"), known())
    assert context.sandbox.name == "p"
    assert context.keys == {"then"}


def test_an_update_shows_what_it_asks_for_and_whose_it_is() -> None:
    request = cri.UpdateContainerResourcesRequest(container_id="c1", linux=cri.LinuxContainerResources(cpu_shares=3))
    context = context_of(request, known())
    assert context.container is not None
    assert (context.container.name, context.container.resources.cpu_shares) == ("c", 3)
    found = known().container("c1")
    assert found is not None
    assert not found[1].HasField("resources")


def test_what_is_not_known_has_its_id() -> None:
    context = context_of(cri.StopContainerRequest(container_id="c9"), known())
    assert context.container is not None
    assert (context.container.id, context.sandbox.id, context.keys) == ("c9", "", frozenset())


def test_what_was_made_has_its_new_id() -> None:
    reply = cri.RunPodSandboxResponse(pod_sandbox_id="new").SerializeToString()
    asked = context_of(cri.RunPodSandboxRequest.FromString(run()), SandboxCache())
    assert context_made(asked, Stage.RUN_POD_SANDBOX, reply).sandbox.id == "new"


@pytest.mark.parametrize(
    ("name", "message", "keys"),
    [
        ("CreateContainer", create(), {"then"}),
        ("CreateContainer", create(sandbox_id="s9"), set()),
        ("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id="s1").SerializeToString(), {"then"}),
        ("StopContainer", cri.StopContainerRequest(container_id="c1").SerializeToString(), {"then"}),
        ("StopContainer", cri.StopContainerRequest(container_id="s1").SerializeToString(), set()),
        ("RunPodSandbox", run(), set()),
        ("RestorePod", create(), set()),
    ],
)
def test_keys_are_found_by_id_without_parsing(name: str, message: bytes, keys: set[str]) -> None:
    assert cached_keys(method(name).stage, message, known()) == keys
