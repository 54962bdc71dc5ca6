"""Test that each way in which a registration can change is noticed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lading.log import Log
from tests.unit.runtimeproxy.chain.test_hooksdir import content, watching, write

FILE = "10.json"


class Place:
    """The path of `hooks.d`, which may be a folder or a link."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self.folder = at / "etc" / "hooks.d"
        self.elsewhere = at / "elsewhere"

    def fill(self, folder: Path, endpoint: str) -> Path:
        folder.mkdir(parents=True)
        write(folder / FILE, content(endpoint))
        return folder


Way = Callable[[Place], Callable[[], None]]


def _plain(change: Callable[[Place], object]) -> Way:
    """Return the way to change a folder that has the registration in it."""

    def way(place: Place) -> Callable[[], None]:
        place.fill(place.folder, "/run/old.sock")
        return lambda: (change(place), None)[1]

    return way


def _recreated(place: Place) -> None:
    shutil.rmtree(place.folder)
    place.fill(place.folder, "/run/new.sock")


def _recreated_with_parent(place: Place) -> None:
    shutil.rmtree(place.folder.parent)
    place.fill(place.folder, "/run/new.sock")


def _exchanged(place: Place) -> None:
    place.fill(place.elsewhere, "/run/new.sock")
    place.folder.rename(place.at / "old")
    place.elsewhere.rename(place.folder)


def _parent_exchanged(place: Place) -> None:
    place.fill(place.elsewhere / "hooks.d", "/run/new.sock")
    place.folder.parent.rename(place.at / "old")
    place.elsewhere.rename(place.folder.parent)


def _swap(link: Path, target: Path) -> None:
    new = link.with_name("new-link")
    new.symlink_to(target)
    new.replace(link)


def _link_of_folder_swapped(place: Place) -> Callable[[], None]:
    old, new = place.fill(place.at / "one", "/run/old.sock"), place.fill(place.at / "two", "/run/new.sock")
    place.folder.parent.mkdir()
    place.folder.symlink_to(old)
    return lambda: _swap(place.folder, new)


def _link_of_parent_swapped(place: Place) -> Callable[[], None]:
    old, new = place.fill(place.at / "one/hooks.d", "/run/old.sock"), place.fill(place.at / "two/hooks.d", "/run/new.sock")
    place.folder.parent.symlink_to(old.parent)
    return lambda: _swap(place.folder.parent, new.parent)


def _link_in_the_middle_swapped(place: Place) -> Callable[[], None]:
    """Swap the middle link of a ConfigMap as Kubernetes mounts it: file → ..data → a folder with a date."""
    place.folder.mkdir(parents=True)
    old, new = place.fill(place.folder / "..1", "/run/old.sock"), place.fill(place.folder / "..2", "/run/new.sock")
    (place.folder / "..data").symlink_to(old.name)
    (place.folder / FILE).symlink_to(f"..data/{FILE}")
    return lambda: _swap(place.folder / "..data", Path(new.name))


def _target_of_link_written(place: Place) -> Callable[[], None]:
    place.folder.mkdir(parents=True)
    target = place.fill(place.elsewhere, "/run/old.sock") / FILE
    (place.folder / FILE).symlink_to(target)
    return lambda: (target.write_text(content("/run/new.sock")), None)[1]


WAYS: dict[str, Way] = {
    "written in place": _plain(lambda place: (place.folder / FILE).write_text(content("/run/new.sock"))),
    "written by rename": _plain(lambda place: write(place.folder / FILE, content("/run/new.sock"))),
    "folder removed and made again": _plain(_recreated),
    "folder removed with its parent and made again": _plain(_recreated_with_parent),
    "folder exchanged": _plain(_exchanged),
    "parent exchanged": _plain(_parent_exchanged),
    "link that is the folder": _link_of_folder_swapped,
    "link that is the parent": _link_of_parent_swapped,
    "link inside the folder": _link_in_the_middle_swapped,
    "file behind a link": _target_of_link_written,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_change_is_noticed(tmp_path: Path, log: Log, way: Way) -> None:
    place = Place(tmp_path)
    change = way(place)
    async with watching(place.folder, log) as published:
        assert published.last() == {FILE: "/run/old.sock"}
        change()
        await published.until_endpoint(FILE, "/run/new.sock")
        (place.folder / FILE).write_text(content("/run/newer.sock"))
        await published.until_endpoint(FILE, "/run/newer.sock")
