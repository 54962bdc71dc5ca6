"""Test that a runtime calls one Lading plugin at most. A second process on the node logs that another one is registered, and
gets no calls."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from hooks.frontends.nri.link import NriLink
from hooks.frontends.nri.place import PluginPlace
from lading.errors import HostError
from lading.log import Event, Log
from tests.fakes.guard import ExpectedPlugin
from tests.fakes.nri_runtime import NriRuntime
from tests.fakes.records import Records


def test_a_second_process_does_not_start_and_names_the_first(tmp_path: Path) -> None:
    with PluginPlace(tmp_path / "nri.sock") as first:
        assert first.take() == ""
        with pytest.raises(HostError, match=f"process {os.getpid()}"), PluginPlace(tmp_path / "nri.sock"):
            pass
    with PluginPlace(tmp_path / "nri.sock"):
        pass


def test_where_no_runtime_is_the_place_is_taken_later(tmp_path: Path) -> None:
    folder = tmp_path / "nri"
    with PluginPlace(folder / "nri.sock") as early, PluginPlace(folder / "nri.sock") as late:
        folder.mkdir()
        assert early.take() == ""
        assert "another lading-hooks" in late.take()


async def test_a_plugin_without_the_place_does_not_connect_and_says_why(short_folder: Path, log: Log, records: Records) -> None:
    first, second = PluginPlace(short_folder / "nri.sock"), PluginPlace(short_folder / "nri.sock")
    async with NriRuntime(short_folder / "nri.sock") as runtime, asyncio.timeout(20):
        link = NriLink(socket=short_folder / "nri.sock", plugin=ExpectedPlugin(), log=log, take_place=second.take)
        with first:
            task = asyncio.create_task(link.keep_connected())
            while "another lading-hooks" not in link.problem:  # noqa: ASYNC110  bounded by the timeout
                await asyncio.sleep(0)
        await runtime.registered()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        second.__exit__()
    assert records.events().count(Event.NRI_LOST) == 1
