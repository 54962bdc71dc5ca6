"""Test the output of commands that take long: their progress, and the service that they wait for."""

import asyncio

import pytest

from kubectl_lading.terminal.progress import ON_A_PIPE_S, SILENT_S, Patience, Progress
from tests.coroutines import LoopFactory
from tests.fakes.simulated_time import SimulatedLoop


@pytest.fixture
def loop_factory() -> LoopFactory:
    return SimulatedLoop


@pytest.mark.parametrize(
    ("lasts_s", "pods", "expected"),
    [
        pytest.param(ON_A_PIPE_S - 1, 7, [], id="a quick command prints nothing"),
        pytest.param(
            4 * ON_A_PIPE_S + 1, 7, ["reading: 7 pods"] * 3, id="a long command prints again when its time has doubled"
        ),
        pytest.param(100, 0, [], id="without a count nothing is printed"),
    ],
)
async def test_progress_is_printed_on_stderr(
    capsys: pytest.CaptureFixture[str], lasts_s: float, pods: int, expected: list[str]
) -> None:
    with Progress("reading") as progress:
        if pods:
            progress.show_count("pods", pods)
        await asyncio.sleep(lasts_s)
    await asyncio.sleep(1000)
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", expected)


SERVER = "https://10.0.0.1:6443"


async def lasting(patience: Patience, call: str, seconds: float) -> None:
    with patience.around(call):
        await asyncio.sleep(seconds)


async def announced(*calls: tuple[str, float]) -> list[str]:
    """Make calls that begin at the same time and last so long. Return the messages about silence."""
    messages: list[str] = []
    patience = Patience(SERVER, announce=messages.append)
    await asyncio.gather(*(lasting(patience, call, seconds) for call, seconds in calls))
    await asyncio.sleep(100)  # while no call waits
    return messages


async def test_a_server_that_answers_is_not_reported() -> None:
    assert await announced(("get /a", SILENT_S - 0.1), ("get /b", 0)) == []
    assert await announced(*((f"get /{n}", n * (SILENT_S - 0.1)) for n in range(9))) == []  # an answer now and then


async def test_silence_is_reported_again_whenever_its_time_has_doubled() -> None:
    messages = await announced(("get /a", 25.0), ("get /b", 25.0))
    assert len(messages) == 4  # after 3, 6, 12 and 24 s
    assert all(SERVER in message and "get /a" in message for message in messages)
    assert "12 s" in messages[2]


async def test_the_call_that_is_named_still_waits() -> None:
    (message,) = await announced(("get /a", 1.0), ("get /b", 1.0 + SILENT_S + 0.5))
    assert "/b" in message
    assert "/a" not in message


async def test_a_call_that_fails_is_over() -> None:
    text: list[str] = []
    patience = Patience(SERVER, announce=text.append)
    with pytest.raises(OSError, match="broken"), patience.around("get /a"):
        raise OSError("broken")
    await asyncio.sleep(100)
    assert text == []
