"""Test the folder of registrations on a real file system."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lading.log import Event, Log
from runtimeproxy.chain.hooksdir import MAX_FILE_BYTES, HooksDir
from runtimeproxy.chain.registrations import Registration
from tests.fakes.records import Records


def content(endpoint: str = "/run/a.sock", *hooks: str) -> str:
    return json.dumps({"remote-endpoint": endpoint, "runtime-hooks": hooks or ["PreCreateContainer"]})


class Published:
    def __init__(self) -> None:
        self.all: list[tuple[Registration, ...]] = []
        self._new = asyncio.Event()

    def __call__(self, registrations: tuple[Registration, ...]) -> None:
        self.all.append(registrations)
        self._new.set()

    def last(self) -> dict[str, str]:
        return {registration.name: registration.endpoint for registration in self.all[-1]}

    async def until(self, *names: str) -> None:
        while list(self.last()) != list(names):
            await self._next()

    async def until_endpoint(self, name: str, endpoint: str) -> None:
        while self.last().get(name) != endpoint:
            await self._next()

    async def _next(self) -> None:
        self._new.clear()
        await self._new.wait()


def read_once(folder: Path, log: Log, **options: Any) -> dict[str, str]:
    published = Published()
    HooksDir(folder, published, log, **options).read()
    return published.last()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "hooks.d"
    made.mkdir()
    return made


def write(path: Path, text: str) -> None:
    """Write the file as a careful writer does: whole, by rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def test_registrations_come_in_order_of_file_name(folder: Path, log: Log) -> None:
    for name in ("20-b.json", "10-a.json", "30-c.json"):
        (folder / name).write_text(content(f"/run/{name}"))
    assert list(read_once(folder, log)) == ["10-a.json", "20-b.json", "30-c.json"]


@pytest.mark.parametrize("name", ["a.json~", ".a.json", ".a.json.swp", "#a.json#", "a.json.bak", "README", "a.JSON"])
def test_editors_leftovers_are_no_registrations(folder: Path, log: Log, records: Records, name: str) -> None:
    (folder / name).write_text("{")
    assert read_once(folder, log) == {}
    assert records.events() == []


def test_an_absent_folder_is_an_empty_one(tmp_path: Path, log: Log, records: Records) -> None:
    assert read_once(tmp_path / "absent" / "hooks.d", log) == {}
    assert records.events() == []


def bad(folder: Path, log: Log, records: Records) -> str:
    assert read_once(folder, log) == {}
    assert records.events() == [Event.HOOK_INVALID]
    return records.written[0][2]


def test_a_bad_file_is_named_with_its_place(folder: Path, log: Log, records: Records) -> None:
    (folder / "10.json").write_text('{"remote-endpoint": "/run/a.sock", "runtime-hook": []}')
    message = bad(folder, log, records)
    assert str(folder / "10.json") in message
    assert "runtime-hook" in message


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 65534, 65534)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


UNTRUSTED: dict[str, Callable[[Path], object]] = {
    "others can write the file": lambda path: path.chmod(0o664),
    "another user's file": give_away,
    "others can write the folder": lambda path: path.parent.chmod(0o777),
    "a FIFO, which would block a reader": make_fifo,
    "too large": lambda path: path.write_text(content() + " " * MAX_FILE_BYTES),
}


@pytest.mark.parametrize("change", UNTRUSTED.values(), ids=UNTRUSTED)
def test_an_untrusted_or_too_large_file_is_no_registration(
    folder: Path, log: Log, records: Records, change: Callable[[Path], object]
) -> None:
    (folder / "10.json").write_text(content())
    change(folder / "10.json")
    bad(folder, log, records)


def test_the_last_valid_content_of_a_file_stays_in_force_and_the_error_is_logged_once(
    folder: Path, log: Log, records: Records
) -> None:
    published = Published()
    hooks = HooksDir(folder, published, log)
    (folder / "10.json").write_text(content("/run/good.sock"))
    hooks.read()
    (folder / "10.json").write_text("{")
    for _ in range(3):
        hooks.read()
    assert published.last() == {"10.json": "/run/good.sock"}
    assert len(published.all) == 1
    assert records.events() == [Event.HOOK_REGISTERED, Event.HOOK_INVALID]
    (folder / "10.json").write_text(content("/run/better.sock"))
    hooks.read()
    assert published.last() == {"10.json": "/run/better.sock"}
    (folder / "10.json").write_text("{")
    hooks.read()
    assert records.events()[-1] is Event.HOOK_INVALID


def test_a_removed_file_is_removed_even_if_it_was_bad(folder: Path, log: Log, records: Records) -> None:
    published = Published()
    hooks = HooksDir(folder, published, log)
    (folder / "10.json").write_text(content())
    hooks.read()
    (folder / "10.json").write_text("{")
    hooks.read()
    (folder / "10.json").unlink()
    hooks.read()
    assert published.last() == {}
    assert records.events()[-1] is Event.HOOK_REMOVED


def test_a_folder_that_becomes_untrusted_keeps_its_registrations(folder: Path, log: Log) -> None:
    published = Published()
    hooks = HooksDir(folder, published, log)
    (folder / "10.json").write_text(content())
    hooks.read()
    folder.chmod(0o777)
    (folder / "10.json").unlink()
    hooks.read()
    assert list(published.last()) == ["10.json"]


def test_two_registrations_of_an_endpoint_for_a_stage_are_a_clash_and_the_later_is_invalid(
    folder: Path, log: Log, records: Records
) -> None:
    for name in ("10.json", "20.json"):
        (folder / name).write_text(content("/run/a.sock"))
    assert list(read_once(folder, log)) == ["10.json"]
    assert records.fields(Event.HOOK_INVALID) == [{"hook": "20.json"}]


def test_a_clash_falls_back_to_the_last_valid_content(folder: Path, log: Log) -> None:
    published = Published()
    hooks = HooksDir(folder, published, log)
    (folder / "10.json").write_text(content("/run/a.sock"))
    (folder / "20.json").write_text(content("/run/b.sock"))
    hooks.read()
    (folder / "20.json").write_text(content("/run/a.sock"))
    hooks.read()
    assert published.last() == {"10.json": "/run/a.sock", "20.json": "/run/b.sock"}
    (folder / "10.json").write_text(content("/run/b.sock"))
    hooks.read()
    assert published.last() == {"10.json": "/run/b.sock", "20.json": "/run/a.sock"}


@asynccontextmanager
async def watching(folder: Path, log: Log) -> AsyncIterator[Published]:
    published = Published()
    hooks = HooksDir(folder, published, log)
    hooks.start()
    try:
        yield published
    finally:
        hooks.close()
        hooks.close()


async def test_files_are_noticed_as_they_come_change_and_go(folder: Path, log: Log) -> None:
    async with watching(folder, log) as published:
        assert published.all == [()]
        write(folder / "10.json", content("/run/a.sock"))
        await published.until("10.json")
        (folder / "20.json").write_text(content("/run/b.sock"))
        await published.until("10.json", "20.json")
        (folder / "10.json").unlink()
        await published.until("20.json")
        (folder / "20.json").rename(folder / "30.json")
        await published.until("30.json")


@pytest.mark.parametrize("path", ["10.json", "."], ids=["file", "folder"])
async def test_a_repaired_mode_is_noticed(folder: Path, log: Log, path: str) -> None:
    (folder / "10.json").write_text(content())
    mode = (folder / path).stat().st_mode
    (folder / path).chmod(0o777)
    async with watching(folder, log) as published:
        assert published.last() == {}
        (folder / path).chmod(mode)
        await published.until("10.json")


async def test_a_folder_that_comes_goes_and_comes_back_is_noticed(tmp_path: Path, log: Log) -> None:
    folder = tmp_path / "lading" / "hooks.d"
    async with watching(folder, log) as published:
        for _ in range(2):
            assert published.last() == {}
            folder.mkdir(parents=True)
            write(folder / "10.json", content())
            await published.until("10.json")
            write(folder / "20.json", content("/run/b.sock"))
            await published.until("10.json", "20.json")
            for path in (folder / "10.json", folder / "20.json"):
                path.unlink()
            folder.rmdir()
            folder.parent.rmdir()
            await published.until()


async def test_a_folder_that_is_replaced_under_its_name_is_noticed(folder: Path, log: Log) -> None:
    (folder / "10.json").write_text(content())
    async with watching(folder, log) as published:
        folder.rename(folder.with_name("old"))
        folder.mkdir()
        write(folder / "20.json", content("/run/b.sock"))
        await published.until("20.json")
        write(folder / "30.json", content("/run/c.sock"))
        await published.until("20.json", "30.json")
