"""Test the newest inventory in memory: polled, refreshed on demand and on a change; the last good one is kept."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hooks.inventory import watch as watch_module
from hooks.inventory.read import read_inventory
from hooks.inventory.watch import InventoryWatch, watched_folders
from hooks.model.inventory import Inventory
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.errors import HostError
from simnode.nvml import GPU_IS_LOST, Failure, NvmlState
from tests.conftest import BuildNode

NEVER = 3600.0
PATIENCE_S = 20.0


def named(name: str) -> Inventory:
    return Inventory(problems=(name,))


class Seen:
    """Record the changes and failures that a watch reports, and wait for them."""

    def __init__(self) -> None:
        self.changes: list[tuple[Inventory, Inventory]] = []
        self.failures: list[str] = []
        self._told = asyncio.Event()

    def changed(self, old: Inventory, new: Inventory) -> None:
        self.changes.append((old, new))
        self._told.set()

    def failed(self, error: Exception) -> None:
        self.failures.append(str(error))
        self._told.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._told.clear()
                await self._told.wait()


@pytest.fixture
def observed() -> Seen:
    return Seen()


def watching(read: Callable[[], Inventory], observed: Seen, **settings: Any) -> InventoryWatch:
    return InventoryWatch(read, on_change=observed.changed, on_failure=observed.failed, **{"interval_s": NEVER, **settings})


def script(steps: list[Inventory | Exception]) -> Callable[[], Inventory]:
    """Return a read function that answers these steps in order, and then repeats the last one."""
    remaining: Iterator[Inventory | Exception] = iter(steps)
    last = steps[-1]

    def read() -> Inventory:
        step = next(remaining, last)
        if isinstance(step, Exception):
            raise step
        return step

    return read


async def test_first_read_is_current_and_reported_as_a_change(observed: Seen) -> None:
    watch = watching(script([named("a")]), observed)
    assert (watch.current, watch.age_s) == (None, float("inf"))
    await watch.start()
    assert watch.current == named("a")
    assert watch.age_s < PATIENCE_S
    assert observed.changes == [(Inventory(), named("a"))]
    await watch.close()


async def test_a_poll_reports_a_change_and_no_equal_reading(observed: Seen) -> None:
    watch = watching(script([named("a"), named("a"), named("b")]), observed, interval_s=0.001)
    await watch.start()
    await observed.until(lambda: len(observed.changes) == 2)
    assert observed.changes[1] == (named("a"), named("b"))  # the equal one in between was no change
    await watch.close()


async def test_failed_read_keeps_the_last_good_one(observed: Seen) -> None:
    watch = watching(script([named("a"), OSError("sick"), named("b")]), observed)
    await watch.start()
    with pytest.raises(HostError):
        await watch.refresh_now()
    assert (watch.current, observed.failures) == (named("a"), ["sick"])
    assert await watch.refresh_now() == named("b")
    assert watch.current == named("b")
    await watch.close()


async def test_start_survives_a_failed_first_read(observed: Seen) -> None:
    watch = watching(script([OSError("not yet"), named("a")]), observed)
    await watch.start()
    assert (watch.current, observed.failures) == (None, ["not yet"])
    assert await watch.refresh_now() == named("a")
    await watch.close()


async def test_a_callback_that_raises_does_not_end_the_poll(observed: Seen) -> None:

    def raises(old: Inventory, new: Inventory) -> None:
        raise RuntimeError("log is full")

    watch = InventoryWatch(script([named("a"), named("b")]), interval_s=0.001, on_change=raises, on_failure=observed.failed)
    await watch.start()
    await observed.until(lambda: len(observed.failures) == 2)
    assert watch.current == named("b")
    await watch.close()


async def test_refresh_begins_after_it_was_asked_for_and_is_shared(observed: Seen) -> None:
    reads: list[None] = []
    gate = threading.Semaphore(1)

    def read() -> Inventory:
        reads.append(None)
        count = len(reads)
        assert gate.acquire(timeout=PATIENCE_S)
        return named(str(count))

    watch = watching(read, observed)
    await watch.start()
    early = asyncio.create_task(watch.refresh_now())
    while len(reads) < 2:  # noqa: ASYNC110 - the second read has begun, in its thread, and is held there
        await asyncio.sleep(0)
    late = [asyncio.create_task(watch.refresh_now()) for _ in range(5)]
    await asyncio.sleep(0)
    gate.release(2)
    assert await early == named("2")
    assert await asyncio.gather(*late) == [named("3")] * 5
    assert len(reads) == 3
    await watch.close()


async def test_a_read_that_hangs_holds_nothing_up(observed: Seen) -> None:
    released, before = threading.Event(), threading.enumerate()

    def hang() -> Inventory:
        released.wait(PATIENCE_S)
        return named("late")

    watch = watching(hang, observed)
    await watch.start(first_read_s=0.01)
    assert watch.current is None
    waiting = asyncio.create_task(watch.refresh_now())
    await asyncio.sleep(0)
    await watch.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    (hanging,) = [thread for thread in threading.enumerate() if thread.name == "in_thread" and thread not in before]
    assert hanging.daemon
    released.set()


async def test_a_new_node_in_dev_is_observed_without_the_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: Seen
) -> None:
    monkeypatch.setattr(watch_module, "SETTLE_S", 0.0)
    (tmp_path / "dev").mkdir()

    def read() -> Inventory:
        return Inventory(problems=tuple(sorted(path.name for path in (tmp_path / "dev").rglob("*"))))

    watch = watching(read, observed, folders=watched_folders(tmp_path, [Nvidia()]), names=Nvidia.device_names)
    await watch.start()
    (tmp_path / "dev/nvidia0").touch()
    await observed.until(lambda: watch.current == named("nvidia0"))
    (tmp_path / "dev/infiniband").mkdir()
    await observed.until(lambda: watch.current == Inventory(problems=("infiniband", "nvidia0")))
    (tmp_path / "dev/infiniband/uverbs0").touch()  # in a folder that was not there at the start
    await observed.until(lambda: watch.current == Inventory(problems=("infiniband", "nvidia0", "uverbs0")))
    (tmp_path / "dev/infiniband/uverbs0").unlink()
    (tmp_path / "dev/infiniband").rmdir()
    (tmp_path / "dev/nvidia0").unlink()
    await observed.until(lambda: watch.current == Inventory())
    await watch.close()


async def test_gpu_lost_and_back_on_a_node(build_node: BuildNode, fake_nvml: Path, observed: Seen) -> None:
    node = build_node("demo-8gpu")
    watch = watching(
        lambda: read_inventory(node.root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml)))]),
        observed,
        folders=watched_folders(node.root, [Nvidia()]),
    )
    await watch.start()
    well = watch.current
    assert well is not None
    NvmlState(profile=node.profile, failures=(Failure(gpu=6, status=GPU_IS_LOST),)).write(node.nvml_state)
    ill = await watch.refresh_now()
    assert [gpu.index for gpu in ill.gpus if gpu.unhealthy] == [6]
    NvmlState(profile=node.profile).write(node.nvml_state)
    assert await watch.refresh_now() == well
    assert (observed.changes[1:], observed.failures) == ([(well, ill), (ill, well)], [])
    await watch.close()
