"""Test case 11: control characters, escape sequences, U+202E, U+2028, NUL, invalid UTF-8 and markup in names and annotations.

Each log event is one escaped record. Logs, refusals and output of commands contain no bytes that control a terminal. A guarded
pod with a request in invalid UTF-8, which containerd 1.6 accepts, is refused, because the proxy cannot read it.

Naive versions that fail: a log line made with an f-string; a refusal that repeats a pod's name unescaped (as Lading did); a
request that is forwarded because it cannot be parsed.
"""

import json
import shlex
import unicodedata
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from hooks.daemon.readiness import decide_ready
from hooks.main import main
from hooks.node.bypass import Bypassed
from lading.http2.messages import GrpcStatus
from lading.log import Event
from lading.reasons import Reason
from lading.vocabulary import ContainerId, PodUid
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.cri import CriError
from tests.conftest import BuildNode
from tests.faults.rig import proxy_in, running
from tests.hostile import raw
from tests.hostile.front import Front
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import eventually

NASTY = (
    "\x1b[2J\x1b]0;owned\x07",
    "\x1b[31mred\x1b[0m",
    "a\nlevel=error event=grant.created msg=forged",
    "a\r\nLADING_EVENT=grant.created",
    'a" event=grant.created x="',
    "a\\",
    "\u202egnp.exe",
    "\u2066a\u2069",
    "a\u2028b\u2029c",
    "a\0b",
    "\x7f\x85\x9b31m",
    "\ufeff\u200b\u00ad",
    "\U000e0041",
    "<img src=x onerror=alert(1)>",
    "%1b%5b2J%0a",
    "é ✓ 漢字",
)
GUARDED = {"lading.dev/gpus": "0"}


def harmless(text: str) -> bool:
    """Return whether a terminal would only show the text, in the order of its characters."""
    return all(char == " " or unicodedata.category(char)[0] in "LMNPS" for char in text)


class Tail:
    """Read the lines that both daemons have logged since this object was created."""

    def __init__(self, front: Front) -> None:
        self._logs = front.lading.logs
        self._from = [log.stat().st_size for log in self._logs]

    def lines(self) -> list[str]:
        out = []
        for log, start in zip(self._logs, self._from, strict=True):
            data = log.read_bytes()[start:].decode("utf-8")  # strictly
            out += data.removesuffix("\n").split("\n") if data else []
        return out

    def events(self) -> list[str]:
        """Return the event of each line, and assert that each line is logfmt. Releases are left out, because those of
        earlier tests may be logged now."""
        result = []
        for line in self.lines():
            assert harmless(line), ascii(line)
            level, event, *fields = shlex.split(line)
            assert level.startswith("level=")
            assert all("=" in field for field in fields), line
            assert sum(field.startswith(("event=", "level=")) for field in fields) == 0
            result.append(event.removeprefix("event="))
        return [event for event in result if event != Event.GRANT_RELEASED]


def requests(nasty: str, annotations: dict[str, str]) -> tuple[cri.RunPodSandboxRequest, cri.CreateContainerRequest]:
    run, create = cri.RunPodSandboxRequest(), cri.CreateContainerRequest()
    metadata = cri.PodSandboxMetadata(name=f"pod-{nasty}", namespace=f"ns-{nasty}", uid=f"uid-{nasty}")
    for config in (run.config, create.sandbox_config):
        config.metadata.CopyFrom(metadata)
        config.annotations.update(annotations)
        config.labels[f"x/{nasty}"] = nasty
    create.config.metadata.name = f"c-{nasty}"
    create.config.image.image = f"registry.example/{nasty}"
    create.config.envs.add(key=f"NVIDIA_VISIBLE_DEVICES{nasty}", value=nasty.encode())
    create.config.envs.add(key="NVIDIA_VISIBLE_DEVICES", value=nasty.encode())
    create.config.annotations[f"y/{nasty}"] = nasty
    return run, create


def create(front: Front, nasty: str, annotations: dict[str, str]) -> CriError | None:
    """Create a pod and its container with this text in all names. Return the refusal, or None."""
    run, container = requests(nasty, annotations)
    pod = ""
    try:
        pod = front.kubelet.call("RunPodSandbox", run, cri.RunPodSandboxResponse).pod_sandbox_id
        container.pod_sandbox_id = pod
        front.kubelet.call("CreateContainer", container, cri.CreateContainerResponse)
    except CriError as e:
        return e
    finally:
        if pod:
            front.kubelet.remove_sandbox(pod)
    return None


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("lading.dev/gpus", "{}", id="a value"),
        pytest.param("lading.dev/gpus.{}", "0", id="a key"),
        pytest.param("lading.dev/gpu.{}", "0", id="a key that is nearly one"),
        pytest.param("lading.dev/grant", "{}", id="a reserved one"),
        pytest.param("lading.dev/assignment-signature", "{}", id="a signature"),
        pytest.param("lading.dev/policy", "{}", id="a request"),
    ],
)
def test_a_refusal(by_hand: Front, nasty: str, key: str, value: str) -> None:
    tail = Tail(by_hand)
    error = create(by_hand, nasty, {key.format(nasty): value.format(nasty)})
    assert error is not None
    assert harmless(error.details), ascii(error.details)
    assert tail.events().count(Event.CALL_REFUSED) == 1


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_a_grant(by_hand: Front, nasty: str) -> None:
    """Check that a container is not refused because of control characters in names, which kubelet itself never sends."""
    tail = Tail(by_hand)
    assert create(by_hand, nasty, GUARDED) is None
    eventually(lambda: _released(by_hand))
    assert tail.events().count(Event.GRANT_CREATED) == 1
    assert create(by_hand, nasty, {}) is None


def _released(front: Front) -> None:
    assert front.grants() == ()


# Invalid UTF-8


def _place_pod_name(run: cri.RunPodSandboxRequest, create: cri.CreateContainerRequest) -> None:
    run.config.metadata.name = create.sandbox_config.metadata.name = "PLACE"


def _place_annotation(run: cri.RunPodSandboxRequest, create: cri.CreateContainerRequest) -> None:
    run.config.annotations["a"] = create.sandbox_config.annotations["a"] = "PLACE"


Place = Callable[[cri.RunPodSandboxRequest, cri.CreateContainerRequest], object]
PLACES: dict[str, Place] = {
    "pod name": _place_pod_name,
    "annotation": _place_annotation,
    "container name": lambda _, create: setattr(create.config.metadata, "name", "PLACE"),
    "annotation key": lambda _, create: create.sandbox_config.annotations.update({"PLACE": "a"}),
    "our annotation": lambda _, create: create.sandbox_config.annotations.update({"lading.dev/gpus": "PLACE"}),
    "our annotation's key": lambda _, create: create.sandbox_config.annotations.update({"lading.dev/PLACE": "0"}),
    "image": lambda _, create: setattr(create.config.image, "image", "PLACE"),
    "label": lambda _, create: create.config.labels.update({"a": "PLACE"}),
    "variable": lambda _, create: create.config.envs.add(key="PLACE", value=b"x"),
    "command": lambda _, create: create.config.command.append("PLACE"),
    "mount": lambda _, create: create.config.mounts.add(container_path="PLACE"),
}
INVALID = (b"\xff\xfe\xfd\xfc\xfb", b"\xed\xa0\x80ab", b"\xc0\xafabc", b"abcd\xf0")


@pytest.mark.parametrize("place", PLACES)
def test_a_guarded_pod_that_is_no_utf8(by_hand: Front, place: str) -> None:
    run, create = requests("", GUARDED)
    with by_hand.pod(GUARDED) as pod:
        create.pod_sandbox_id = pod.id
        PLACES[place](run, create)
        before = len(by_hand.runtime.asked)
        tail = Tail(by_hand)
        for invalid in INVALID:
            message = create.SerializeToString().replace(b"PLACE", invalid)
            assert refused(by_hand.lading.cri_socket, "CreateContainer", message) == Reason.REQUEST_UNREADABLE
        assert by_hand.runtime.asked[before:] == []
        assert tail.events() == [Event.CALL_REFUSED] * len(INVALID)


def test_a_sandbox_of_a_guarded_pod_that_is_no_utf8(by_hand: Front) -> None:
    run, create = requests("", GUARDED)
    PLACES["pod name"](run, create)
    before = len(by_hand.runtime.asked)
    message = run.SerializeToString().replace(b"PLACE", INVALID[0])
    assert refused(by_hand.lading.cri_socket, "RunPodSandbox", message) == Reason.REQUEST_UNREADABLE
    assert by_hand.runtime.asked[before:] == []


def test_nor_is_it_made_without_its_annotations(by_hand: Front) -> None:
    """Check that a guarded pod stays guarded if a later, unreadable request lacks the pod's annotations."""
    with by_hand.pod(GUARDED) as pod:
        run, create = requests("", {})
        create.pod_sandbox_id = pod.id
        PLACES["command"](run, create)
        message = create.SerializeToString().replace(b"PLACE", INVALID[0])
        assert refused(by_hand.lading.cri_socket, "CreateContainer", message) == Reason.REQUEST_UNREADABLE


def test_everybody_elses_goes_on_as_it_came(short_folder: Path) -> None:
    with InMemoryRuntime(short_folder / "runtime.sock") as runtime:
        proxy = proxy_in(short_folder, runtime.path)
        with running(proxy):
            for name in (name for name in PLACES if "our" not in name):
                run, create = requests("", {})
                PLACES[name](run, create)
                message = create.SerializeToString().replace(b"PLACE", INVALID[0])
                answer = raw.call(proxy.socket, "/runtime.v1.RuntimeService/CreateContainer", message)
                assert runtime.requests("CreateContainer")[-1] == message
                assert answer.status == GrpcStatus.OK


def refused(path: Path, method: str, message: bytes) -> str:
    answer = raw.call(path, f"/runtime.v1.RuntimeService/{method}", message)
    assert answer.status == GrpcStatus.INVALID_ARGUMENT
    text = unquote_to_bytes(answer.text).decode()
    assert harmless(text)
    assert answer.text.isascii()
    return text.split(": ")[1]


def _not_reconciled(front: Front) -> None:
    assert front.refused(GUARDED).reason is Reason.NOT_RECONCILED


def test_a_list_that_is_no_utf8(by_hand: Front) -> None:
    """Check lists of a runtime that accepts such text: holders are unknown, so no device is granted, and this is logged."""
    listed = cri.ListContainersResponse(containers=[cri.Container(id="c", metadata=cri.ContainerMetadata(name="PLACE"))])
    by_hand.runtime.scripted["ListContainers"] = listed.SerializeToString().replace(b"PLACE", INVALID[0])
    tail = Tail(by_hand)
    try:
        by_hand.lading.hooks.restart()
        eventually(lambda: _not_reconciled(by_hand), within_s=20)
        by_hand.lading.proxy.restart()
    finally:
        del by_hand.runtime.scripted["ListContainers"]
    by_hand.reconnect()

    def served() -> None:
        with by_hand.created(GUARDED):
            pass

    eventually(served, within_s=20)
    assert Event.LEDGER_FAILED in tail.events()


# Output of commands and pages


@pytest.fixture
def arguments(build_node: BuildNode, fake_nvml: Path, tmp_path: Path) -> list[str]:
    (tmp_path / "empty.toml").touch()
    node = build_node("demo-8gpu")
    return [
        *("--assignments", "manual", "--host-root", str(node.root), "--nvml-library", str(fake_nvml)),
        *("--state-dir", str(tmp_path / "state"), "--config", str(tmp_path / "empty.toml")),
    ]


@pytest.mark.parametrize("output", ["text", "json"])
def test_render(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str) -> None:
    for nasty in NASTY:
        for annotations in (GUARDED, {"lading.dev/gpus": nasty, f"lading.dev/gpu.{nasty}": nasty}):
            pod = {
                "kind": "Pod",
                "metadata": {"name": nasty, "namespace": nasty, "uid": nasty, "annotations": annotations},
                "spec": {"containers": [{"name": nasty, "env": [{"name": nasty, "value": nasty}]}, {"name": f"b{nasty}"}]},
            }
            manifest = tmp_path / "pod.yaml"
            manifest.write_text(json.dumps(pod))
            try:
                main(["render", "-f", str(manifest), "-o", output, *arguments])
            except SystemExit as e:
                assert e.code in {2, 3}  # noqa: PT017
            shown = capsys.readouterr()
            for line in (shown.out + shown.err).split("\n"):
                assert harmless(line), ascii(line)


def test_a_manifest_that_is_none(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for nasty in NASTY:
        for text in (json.dumps({"kind": nasty}), json.dumps({"kind": "Pod", "metadata": nasty}), f"'{nasty}", f"- {nasty}: ["):
            manifest = tmp_path / "pod.yaml"
            manifest.write_text(text)
            with pytest.raises(SystemExit):
                main(["render", "-f", str(manifest), *arguments])
            for line in capsys.readouterr().err.split("\n"):
                assert harmless(line), ascii(line)


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_readyz(nasty: str) -> None:
    bypassed = Bypassed(id=ContainerId("c"), container=nasty, pod=PodUid(nasty), namespace=nasty, pod_name=nasty)
    conditions = decide_ready(
        inventory_age_s=0,
        inventory_interval_s=10,
        reconcile_age_s=0,
        reconcile_interval_s=10,
        ledger="",
        socket="",
        bypassed=[bypassed],
    )
    assert all(harmless(condition.why) for condition in conditions)
