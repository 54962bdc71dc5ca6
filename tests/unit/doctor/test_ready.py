import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from doctor.read import read_reply
from doctor.ready import MENDS, DaemonReply, VersionsReading, decide_ready, decide_versions
from hooks.daemon.readiness import decide_ready as readiness_of_hooks
from hooks.node.bypass import Bypassed
from lading.checks.model import Verdict
from lading.errors import HostError
from lading.vocabulary import ContainerId, PodUid
from runtimeproxy.daemon import decide_ready as readiness_of_proxy
from tests.unit.doctor.verdicts import states

METRICS = 'lading_build_info{version="1.2.3"} 1.0\nlading_proxy_connections 5.0\n'


def reply(*conditions: dict[str, object]) -> DaemonReply:
    return DaemonReply(daemon="d", address="127.0.0.1:1", readyz=json.dumps({"conditions": conditions}).encode())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (reply({"name": "a", "ok": True}), [Verdict.OK]),
        (reply({"name": "a", "ok": False, "why": "w"}, {"name": "b", "ok": True}), [Verdict.FAILED]),
        (reply({"name": "a", "ok": False, "required": False}), [Verdict.WARNING]),
        (DaemonReply(daemon="d", address=""), [Verdict.SKIPPED]),
        (DaemonReply(daemon="d", address="127.0.0.1:1"), [Verdict.WARNING]),
        (DaemonReply(daemon="d", address="127.0.0.1:1", readyz=b"<html>"), [Verdict.WARNING]),
    ],
)
def test_each_condition_of_a_daemon_has_its_verdict(given: DaemonReply, expected: list[Verdict]) -> None:
    assert states(decide_ready(given)) == expected


def test_a_condition_that_is_not_met_is_named_with_its_mend() -> None:
    given = reply(
        {"name": "hook 50.json", "ok": False, "why": "silent"}, {"name": "newer", "ok": False, "why": "w", "required": False}
    )
    hook, newer = decide_ready(given)
    assert "hook 50.json: silent" in hook.what
    assert "systemctl restart lading-hooks" in hook.mend
    assert "journalctl -t d" in newer.mend


def test_every_condition_has_its_mend() -> None:
    bypassed = Bypassed(id=ContainerId("i"), container="c", pod=PodUid("u"), namespace="n", pod_name="p")
    of_hooks = readiness_of_hooks(
        inventory_age_s=float("inf"),
        inventory_interval_s=1,
        reconcile_age_s=float("inf"),
        reconcile_interval_s=1,
        ledger="full",
        socket="gone",
        bypassed=[bypassed],
        driver_files="gone",
        unhealthy=["GPU"],
        denied=["/x"],
        report_stale_s=1e6,
        report_failure="refused",
        taint_failure="forbidden",
        front_ends={"nri": "off", "nri-guard": "none"},
    )
    of_proxy = readiness_of_proxy(
        runtime="away",
        socket="gone",
        stopping=False,
        hooks_dir="/etc/lading/hooks.d",
        hooks_dir_problems=["50.json: not JSON"],
        hook_silences={"50.json": "silent"},
        guarded_prefixes=["lading.dev/"],
        denied=["/x"],
    )
    conditions = (*of_hooks, *of_proxy)
    assert not any(condition.ok for condition in conditions)
    assert {condition.name.partition(" ")[0] for condition in conditions} == set(MENDS)


def test_version_and_gauges_of_a_daemon_are_read_from_its_metrics() -> None:
    reply = DaemonReply(daemon="d", address="x", metrics=METRICS)
    assert reply.version == "1.2.3"
    assert reply.gauge("lading_proxy_connections") == 5
    assert reply.gauge("lading_proxy") is None
    assert DaemonReply(daemon="d", address="x").version == ""


@asynccontextmanager
async def answering(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None],
) -> AsyncIterator[str]:
    """Yield the address of a server that handles connections by `serve`."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_readiness_and_metrics_are_read_and_an_absent_daemon_has_none() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n" + path)
        writer.close()

    async with answering(serve) as address:
        reply = await read_reply("d", address)
    assert (reply.readyz, reply.metrics) == (b"/readyz", "/metrics")
    absent = await read_reply("d", address)
    assert (absent.readyz, absent.metrics) == (None, None)


async def test_a_server_whose_answer_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doctor.read.LARGEST", 100_000)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"x" * 10_000)
                await writer.drain()

    async with answering(serve) as address:
        assert len((await read_reply("d", address)).readyz or b"") <= 100_000


@pytest.mark.parametrize("end", [asyncio.StreamWriter.close, lambda writer: writer.transport.abort()])
async def test_a_connection_that_ended_without_an_answer_is_made_again(end: Callable[[asyncio.StreamWriter], object]) -> None:
    endings = [end, end]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if endings:  # a daemon does so when the request is late
            endings.pop()(writer)
            return
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + METRICS.encode())
        writer.close()

    async with answering(serve) as address:
        assert (await read_reply("d", address)).readyz == METRICS.encode()


async def test_a_server_that_only_closes_connections_does_not_answer() -> None:
    async with answering(lambda _, writer: writer.close()) as address:
        with pytest.raises(HostError, match="no answer to /readyz"):
            await read_reply("d", address, answer_s=0.3)


@pytest.mark.parametrize(
    ("hooks", "proxy", "expected"),
    [
        ("0.1.0", "0.1.0", [Verdict.OK]),
        ("0.1.0", "0.2.0", [Verdict.WARNING]),
        ("0.1.0", "", [Verdict.OK]),
        ("0.1.0", "0.3.0", [Verdict.FAILED, Verdict.WARNING]),
        ("0.0.9", "0.1.0", [Verdict.WARNING]),  # the hooks that run are older than the installed ones
        ("0.3.0", "0.1.0", [Verdict.FAILED, Verdict.WARNING]),
        ("", "", [Verdict.SKIPPED]),
    ],
)
def test_versions_of_the_installed_package_and_of_the_daemons_agree(hooks: str, proxy: str, expected: list[Verdict]) -> None:
    reading = VersionsReading(installed="0.1.0", running={"lading-hooks": hooks, "lading-runtimeproxy": proxy})
    assert states(decide_versions(reading)) == expected
