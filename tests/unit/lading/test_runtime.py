import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
import pytest

from lading.errors import RuntimeUnavailableError
from lading.runtime import RuntimeClient, decide_cdi_support
from protos.cri.runtime.v1 import api_pb2 as cri

Answer = Callable[[bytes, grpc.aio.ServicerContext[Any, Any]], Awaitable[bytes]]


@asynccontextmanager
async def fake_runtime(path: Path, **answers: Answer) -> AsyncIterator[None]:
    """Serve these methods: functions from bytes to bytes, by name."""
    server = grpc.aio.server()
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer) for method, answer in answers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", handlers),))
    server.add_insecure_port(f"unix:{quote(str(path))}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def says(message: Any) -> Answer:
    async def answer(_: bytes, __: object) -> bytes:
        return bytes(message.SerializeToString())

    return answer


def aborts(code: grpc.StatusCode) -> Answer:
    async def answer(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        await context.abort(code, "because")
        raise AssertionError

    return answer


async def never(_: bytes, __: object) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


VERSION = cri.VersionResponse(runtime_name="containerd", runtime_version="1.6.20~ds1", runtime_api_version="v1")


async def test_lists_and_statuses(tmp_path: Path) -> None:
    async def echo_status(request: bytes, _: object) -> bytes:
        asked = cri.PodSandboxStatusRequest.FromString(request)
        answer = cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(id=asked.pod_sandbox_id))
        if asked.verbose:
            answer.info["info"] = "{}"
        return answer.SerializeToString()

    path = tmp_path / "a %41?#.sock"
    sandboxes = cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="s1"), cri.PodSandbox(id="s2")])
    containers = cri.ListContainersResponse(containers=[cri.Container(id="c1")])
    async with (
        fake_runtime(
            path,
            Version=says(VERSION),
            Status=says(cri.StatusResponse(info={"config": "{}"})),
            ListPodSandbox=says(sandboxes),
            ListContainers=says(containers),
            PodSandboxStatus=echo_status,
        ),
        RuntimeClient(path) as runtime,
    ):
        assert (await runtime.version()).runtime_version == "1.6.20~ds1"
        assert (await runtime.status_verbose()).info["config"] == "{}"
        assert [s.id for s in await runtime.list_sandboxes()] == ["s1", "s2"]
        assert [c.id for c in await runtime.list_containers()] == ["c1"]
        sandbox = await runtime.sandbox_status("s1", verbose=True)
        assert sandbox is not None
        assert (sandbox.status.id, dict(sandbox.info)) == ("s1", {"info": "{}"})


async def test_an_id_that_the_runtime_does_not_know_is_none(tmp_path: Path) -> None:
    deleted = aborts(grpc.StatusCode.NOT_FOUND)
    path = tmp_path / "x.sock"
    async with fake_runtime(path, PodSandboxStatus=deleted), RuntimeClient(path) as runtime:
        assert await runtime.sandbox_status("s1") is None


async def test_a_long_list_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    long = cri.ListContainersResponse(containers=[cri.Container(id="c", image_ref="x" * 20_000_000)])
    async with fake_runtime(path, ListContainers=says(long)), RuntimeClient(path) as runtime:
        assert len((await runtime.list_containers())[0].image_ref) == 20_000_000


@pytest.mark.parametrize("answer", [None, aborts(grpc.StatusCode.UNKNOWN), aborts(grpc.StatusCode.NOT_FOUND), never])
async def test_a_failed_list_is_unavailable_and_never_empty(tmp_path: Path, answer: Answer | None) -> None:
    path = tmp_path / "x.sock"
    answers = {} if answer is None else {"ListContainers": answer}
    async with fake_runtime(path, **answers), RuntimeClient(path, timeout_s=0.3) as runtime:
        with pytest.raises(RuntimeUnavailableError, match=r"x\.sock"):
            await runtime.list_containers()


async def test_a_status_that_fails_is_not_an_unknown_id(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    async with fake_runtime(path, PodSandboxStatus=aborts(grpc.StatusCode.UNKNOWN)), RuntimeClient(path) as runtime:
        with pytest.raises(RuntimeUnavailableError):
            await runtime.sandbox_status("s1")


async def test_a_runtime_that_comes_back_is_found_at_once(tmp_path: Path) -> None:
    """Check 0.6 s: with gRPC's own back-off it would take 0.8 s each time. A busy machine may be late, but not in each
    attempt."""

    async def found(runtime: RuntimeClient) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.75):
                while True:
                    with contextlib.suppress(RuntimeUnavailableError):
                        return await runtime.version() == VERSION
                    await asyncio.sleep(0.02)  # gRPC's own clock decides, which cannot be simulated
        return False

    async def once(path: Path) -> bool:
        async with RuntimeClient(path) as runtime:
            for _ in range(3):
                with pytest.raises(RuntimeUnavailableError, match=r"x\.sock"):
                    await runtime.version()
            async with fake_runtime(path, Version=says(VERSION)):
                return await found(runtime)

    assert True in [await once(tmp_path / f"{number}x.sock") for number in range(3)]


# CDI


def status(config: str) -> cri.StatusResponse:
    return cri.StatusResponse(info={"config": config})


@pytest.mark.parametrize(
    ("name", "version", "config", "supported"),
    [
        ("containerd", "1.6.20~ds1", '{"enableCDI":true}', False),
        ("containerd", "1.7.0", '{"enableCDI":true}', False),
        ("containerd", "v1.7.1", '{"enableCDI":true}', False),
        ("containerd", "1.7.2", '{"enableCDI":true}', True),
        ("containerd", "1.7.24~ds1", '{"enableCDI":true}', True),
        ("containerd", "1.7.24~ds1", '{"enableCDI":false}', False),
        ("containerd", "1.7.24", "{}", False),
        ("containerd", "1.7.24", "not json", False),
        ("containerd", "v2.1.9", "{}", True),
        ("containerd", "2.1", "[]", True),
        ("containerd", "2.0.0-rc.1", '{"enableCDI":false}', False),
        ("containerd", "2.1.9", '{"enableCDI":true,"cdiSpecDirs":[]}', False),
        ("containerd", "1.10.0", '{"enableCDI":true}', True),
        ("containerd", "devel", '{"enableCDI":true}', False),
        ("cri-o", "1.33.0", '{"enableCDI":true}', False),
    ],
)
def test_whether_a_runtime_honours_cdi_devices(name: str, version: str, config: str, supported: bool) -> None:
    support = decide_cdi_support(cri.VersionResponse(runtime_name=name, runtime_version=version), status(config))
    assert support.supported is supported
    if not supported:
        assert version in support.problem


def test_spec_dirs_are_the_runtimes() -> None:
    version = cri.VersionResponse(runtime_name="containerd", runtime_version="2.1.9")
    assert decide_cdi_support(version, status('{"cdiSpecDirs":["/a","/b"]}')).spec_dirs == ("/a", "/b")
    assert decide_cdi_support(version, cri.StatusResponse()).spec_dirs == ("/etc/cdi", "/var/run/cdi")
