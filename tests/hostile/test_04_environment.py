"""Test case 4: the environment of an image or a pod, such as LD_PRELOAD, must not reach any program that Lading runs.

Lading runs no program for a pod: no helper, no hook binary, no shell. So no process is started, no library loaded and no
variable set while containers with such variables are created, and a hook server receives only the variables' names.

Naive versions that fail: a hook that starts a helper with the container's environment, as nvidia-container-toolkit did
(CVE-2025-23266); a projection that shows all values to a hook.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hooks.vendors.nvidia.hide import VISIBLE_DEVICES
from protos.hook.v1 import hook_pb2 as hook
from simnode.build import build
from simnode.daemons import LadingNode
from tests.hostile.front import Front, devices
from tests.hostile.runtime import InMemoryRuntime
from tests.started import short_folder

GUARDED: Final = {"lading.dev/gpus": "0"}
HOSTILE: Final = {
    "LD_PRELOAD": "/proc/self/cwd/evil.so",
    "LD_AUDIT": "/evil.so",
    "LD_LIBRARY_PATH": "/evil",
    "GLIBC_TUNABLES": "glibc.malloc.mxfast=1",
    "GCONV_PATH": "/evil",
    "PATH": "/evil",
    "PYTHONPATH": "/evil",
    "PYTHONSTARTUP": "/evil.py",
    "PYTHONHOME": "/evil",
    "BASH_ENV": "/evil.sh",
    "NVIDIA_REQUIRE_CUDA": "`touch /evil`",
    "FAKE_NVML_STATE": "/evil",
    "LISTEN_FDS": "1",
    "NOTIFY_SOCKET": "/evil",
}


class Audited:
    """Run both daemons under an audit hook, and a second hook server that keeps its requests."""

    def __init__(self, front: Front, spy: InMemoryRuntime, audits: list[Path]) -> None:
        self.front = front
        self.spy = spy
        self._audits = audits

    def events(self) -> list[str]:
        return [line for audit in self._audits for line in audit.read_text().splitlines()]

    def shown(self) -> list[hook.AdjustRequest]:
        return [hook.AdjustRequest.FromString(request) for request in self.spy.requests("Adjust")]


@pytest.fixture(scope="module")
def audited(device_nodes: None) -> Iterator[Audited]:
    with (
        short_folder() as folder,
        InMemoryRuntime(folder / "runtime.sock") as runtime,
        InMemoryRuntime(folder / "spy.sock") as spy,
    ):
        audits = [folder / "hooks.audit", folder / "proxy.audit"]
        spy.scripted["Adjust"] = hook.AdjustResponse(adjustment=hook.Adjustment()).SerializeToString()
        node = build("demo-8gpu", folder / "node")
        lading = LadingNode(folder, node=node, runtime=runtime)
        for daemon, audit in zip((lading.hooks, lading.proxy), audits, strict=True):
            program, *arguments = daemon.argv
            daemon.argv = [sys.executable, "-m", "tests.hostile.audited", str(audit), Path(program).name, *arguments]
        lading.hooks_dir.mkdir()
        registration = {
            "remote-endpoint": str(spy.path),
            "runtime-hooks": ["PreCreateContainer"],
            "annotation-prefixes": ["lading.dev/"],
            "env-values": ["SHOWN"],
        }
        lading.write_config()
        (lading.hooks_dir / "50-lading.json").write_text(json.dumps(registration_of(lading)))
        (lading.hooks_dir / "60-spy.json").write_text(json.dumps(registration))
        lading.hooks.start()
        lading.proxy.start()
        try:
            with Front(lading, runtime) as front:
                yield Audited(front, spy, audits)
        finally:
            lading.stop()


def registration_of(lading: LadingNode) -> dict[str, object]:
    return {
        "remote-endpoint": str(lading.hooks.socket),
        "runtime-hooks": ["PreCreateContainer", "PreStopPodSandbox", "PostRemovePodSandbox"],
        "annotation-prefixes": ["lading.dev/"],
        "env-values": [VISIBLE_DEVICES],
    }


def test_nothing_is_started_loaded_or_set(audited: Audited) -> None:
    front = audited.front
    with front.created(GUARDED):  # a first call, so that all modules are imported before the measured ones
        pass
    before = audited.events()
    assert any(event.startswith("ctypes.dlopen") for event in before)  # the audit works: NVML was loaded
    labels = {f"x/{name}": value for name, value in HOSTILE.items()}
    with front.created({**GUARDED, **labels}, env=HOSTILE) as guarded:
        assert front.card(0) in devices(guarded)
        sent = {env.key: env.value.decode() for env in guarded.config.envs}
        assert HOSTILE.items() <= sent.items()  # the container's own business, as it came
    with front.created(labels, env={**HOSTILE, VISIBLE_DEVICES: "all"}) as plain:
        assert not devices(plain)
    front.refused({"lading.dev/gpus": "99"}, env=HOSTILE)
    assert audited.events() == before


def test_a_hook_is_shown_names_only(audited: Audited) -> None:
    with audited.front.created(GUARDED, env={**HOSTILE, "SHOWN": "seen"}):
        pass
    request = audited.shown()[-1]
    values = {env.name: env.value for env in request.container.env if env.HasField("value")}
    assert values == {"SHOWN": "seen"}
    assert HOSTILE.keys() <= {env.name for env in request.container.env}
    assert all(value.encode() not in request.SerializeToString() for value in HOSTILE.values() if len(value) > 1)
