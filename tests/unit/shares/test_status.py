"""The answer of a server about itself: JSON, a table, and metrics."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from lading.errors import ConfigError, HostError
from lading.sharestatus import ShareUse, ask
from lading.sockets import listen
from shares.main import check, main
from shares.server import Usage
from shares.settings import Settings
from shares.status import Metrics, answer, render_table
from tests.fakes.share_rig import CARD, MIB, share, shared

USE = Usage(
    grant=share("train", shared(request=30, limit=60)),
    uuid=CARD,
    held_ns=1_234_567_890,
    waited_ns=2_500_000_000,
    used_bytes=700 * MIB + 1,
    limit_bytes=2048 * MIB,
    process_ids=(11, 12),
    has_turn=True,
    waiters=1,
)
TABLE = """\
POD   CONTAINER  GPU           COMPUTE     HELD   TURN  MEMORY           PROCESSES
ml/p  train      GPU-00000001  30 to 60 %  1.2 s  yes   701 of 2048 MiB  2"""


@pytest.fixture
def path(short_folder: Path) -> Path:
    return short_folder / "status.sock"


async def asked(path: Path, *uses: Usage) -> list[ShareUse]:
    with listen(path) as listener:
        server = await answer(listener, lambda: uses)
        try:
            return await asyncio.to_thread(ask, path)
        finally:
            server.close()


def test_the_answer_is_the_use_of_each_share(path: Path) -> None:
    (use,) = asyncio.run(asked(path, USE))
    assert (use.namespace, use.pod, use.container, use.gpu) == ("ml", "p", "train", CARD)
    assert (use.request_percent, use.limit_percent, use.held_s, use.waited_s) == (30, 60, 1.235, 2.5)
    assert (use.memory_used_mib, use.memory_limit_mib, use.processes) == (701, 2048, 2)
    assert (use.has_turn, use.waiters) == (True, 1)
    assert render_table([use]) == TABLE


def test_a_share_without_turns_is_shown_as_one_by_mps(path: Path) -> None:
    (use,) = asyncio.run(asked(path, replace(USE, grant=share("train", shared(request=30, limit=60, turns=False)))))
    assert not use.turns
    assert "by MPS, to 60 %" in render_table([use])


def test_an_answer_of_thousands_arrives_whole(path: Path) -> None:
    uses = asyncio.run(asked(path, *[USE] * 5000))
    assert len(uses) == 5000


def test_the_command_shows_the_table_or_the_same_as_json(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def run(*uses: Usage) -> None:
        with listen(path) as listener:
            server = await answer(listener, lambda: uses)
            for output in ("table", "json"):
                await asyncio.to_thread(main, ["status", "-o", output, "--listen", str(path)])
            server.close()

    asyncio.run(run(USE))
    printed = capsys.readouterr().out
    assert printed.startswith(TABLE + "\n")
    assert '"memoryUsedMiB": 701' in printed
    asyncio.run(run())
    assert "no container has a share" in capsys.readouterr().out


def test_a_server_that_does_not_run_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HostError, match=str(path)):
        ask(path)
    with pytest.raises(SystemExit) as e:
        main(["status", "--listen", str(path)])
    assert e.value.code
    assert str(path) in capsys.readouterr().err


def test_metrics_are_by_pod_container_and_card() -> None:
    text = generate_latest(Metrics(lambda: [USE], lambda: 3).registry).decode()
    labels = f'{{container="train",gpu="{CARD}",namespace="ml",pod="p"}}'
    assert f"lading_share_held_seconds_total{labels} 1.23456789\n" in text
    assert f"lading_share_waited_seconds_total{labels} 2.5\n" in text
    assert f"lading_share_memory_bytes{labels} 7.34003201e+08\n" in text
    assert "lading_shares_refused_total 3.0\n" in text


@pytest.mark.parametrize("settings", [Settings(listen="tcp://[::]:1"), Settings(metrics="9444")])
def test_a_wrong_setting_is_refused(settings: Settings) -> None:
    with pytest.raises(ConfigError):
        check(settings)
