"""Hand cards over from one tenant to the next: make a card without a holder ready, and note since when a card is dirty.

After a card's last grant has ended, a thread sets its clocks and its power limit to the configured values. The operator's
command runs for the card until it succeeds, and the card is read again. The card waits until all of this is done. Then the
inventory shows whether the card is clean (grant/dirty.py). All steps may be repeated: after a restart, the daemon begins again
with all free cards.

Where systemd runs, the command is a transient service, `lading-hand-over-<UUID>`. So it is outside the sandbox of lading-hooks,
and runs once at a time for a card, even if lading-hooks restarts meanwhile. Source: systemd-run(1), sd_booted(3).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from hooks.grant.dirty import HostProcess, add_since
from hooks.host.commands import bare_env, run_command
from hooks.ledger.unmanaged import Unmanaged, name_processes
from hooks.model.inventory import Gpu
from lading.errors import HostError, place_of
from lading.log import Event, Log
from lading.threads import in_thread
from lading.vocabulary import GpuUuid

AGAIN_S: Final = 30.0  # seconds between two runs of a command that fails
_MARGIN_S: Final = 5.0  # extra seconds for systemd to end the command after its deadline
LASTS_S: Final = 30.0  # seconds until a dirty card is logged; memory of a large program is back earlier


async def run_hand_over(gpu: Gpu, *, command: Sequence[str], deadline_s: float, as_service: bool) -> None:
    """Run the operator's command for a card, with {uuid} and {bdf} in its arguments replaced by the card's. Raise HostError if
    the command fails, or runs for longer than `deadline_s`."""
    text = [word.replace("{uuid}", gpu.uuid).replace("{bdf}", gpu.bdf) for word in command]
    env = bare_env()
    if not as_service:
        await run_command(text, env=env, wait_s=deadline_s)
        return
    service = [f"--unit=lading-hand-over-{gpu.uuid}", f"--property=RuntimeMaxSec={deadline_s:g}"]
    systemd_run = ["systemd-run", "--quiet", "--collect", "--wait", "--pipe", *service, "--"]
    await run_command([*systemd_run, *text], env=env, wait_s=deadline_s + _MARGIN_S)


def name_host_processes(host_root: Path, unmanaged: Unmanaged) -> Mapping[GpuUuid, Sequence[HostProcess]]:
    """Return the host's processes that are still on cards, with their names, by card."""
    return {
        card: [HostProcess(pid, name) for pid, name in name_processes(host_root, pids)] for card, pids in unmanaged.host.items()
    }


@dataclass(slots=True)
class _Dirt:
    text: str
    since: int  # Unix time
    began: float  # seconds, on the clock that never goes back
    logged: bool = False


@dataclass(slots=True, kw_only=True)
class HandOver:
    """Keep the cards without a holder until they are ready for the next one. Call all methods on the event loop's thread.
    `restore` runs in a thread, resets the settings that a tenant may have changed, and returns its failures as text; None: no
    settings to reset. `command` runs the operator's command for a card, in a bounded time, or raises HostError; None: no
    command. `read_soon` requests a reading of the devices."""

    log: Log
    restore: Callable[[Collection[GpuUuid]], Sequence[str]] | None = None
    command: Callable[[GpuUuid], Awaitable[None]] | None = None
    read_soon: Callable[[], object] = lambda: None
    clock: Callable[[], float] = time.monotonic
    _left: dict[GpuUuid, float] = field(default_factory=dict)  # time, on `clock`, after which the card must be read
    _restoring: dict[GpuUuid, asyncio.Task[None]] = field(default_factory=dict)
    _failed: dict[GpuUuid, str] = field(default_factory=dict)  # failure of the command's last run
    _dirty: dict[GpuUuid, _Dirt] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        """Return whether a card without a holder needs anything besides a reading."""
        return self.restore is not None or self.command is not None

    @property
    def since(self) -> Mapping[GpuUuid, int]:
        """Return the dirty cards, each with the Unix time since when it is dirty."""
        return {card: dirt.since for card, dirt in self._dirty.items()}

    def waits(self) -> Mapping[GpuUuid, str]:
        """Return the cards that are not handed over yet, each with the missing step."""
        restoring = dict.fromkeys(self._restoring, "it is being handed over after its last holder")
        failed = {card: f"the hand-over command fails: {reason}" for card, reason in self._failed.items()}
        return dict.fromkeys(self._left, "it has not been read since its last holder was gone") | restoring | failed

    def not_given(self) -> Mapping[GpuUuid, str]:
        """Return the cards that no pod is given now, each with the reason: the step that it waits for, or its dirt and since
        when. A card that was dirty may have a holder by now."""
        return {card: add_since(dirt.text, dirt.since) for card, dirt in self._dirty.items()} | dict(self.waits())

    def left(self, cards: Collection[GpuUuid]) -> None:
        """Begin the hand-over of cards that no grant holds any more."""
        now = self.clock()
        self._left.update(dict.fromkeys(cards, now))
        if self.has_work:
            task = asyncio.get_running_loop().create_task(self._ready(frozenset(cards)))
            self._restoring.update(dict.fromkeys(cards, task))
        self.read_soon()

    async def _ready(self, cards: frozenset[GpuUuid]) -> None:
        own = asyncio.current_task()
        await self._restore(cards)
        async with asyncio.TaskGroup() as group:
            for card in cards:
                group.create_task(self._run_command(card))
        self._restoring = {card: task for card, task in self._restoring.items() if task is not own}

    async def _run_command(self, card: GpuUuid) -> None:
        """Run the operator's command for the card until it succeeds. Then the card is read once more."""
        while self.command is not None:
            try:
                await self.command(card)
            except Exception as e:  # noqa: BLE001  the card stays closed, and says why, until the command succeeds
                reason = str(e) if isinstance(e, HostError) else f"internal error: {place_of(e)}"
                self._failed[card] = reason
                self.log.warning(Event.DEVICE_NOT_RESTORED, f"the hand-over command fails: {reason}", device=card)
                await asyncio.sleep(AGAIN_S)
            else:
                self._left[card] = self.clock()
                self.read_soon()
                break
        self._failed.pop(card, None)

    async def _restore(self, cards: frozenset[GpuUuid]) -> None:
        restore = self.restore
        try:
            for problem in await in_thread(partial(restore, cards)) if restore else ():
                self.log.warning(Event.DEVICE_NOT_RESTORED, problem)
        except Exception as e:  # noqa: BLE001 - whatever a driver comes up with, the card is not kept for ever
            self.log.warning(Event.DEVICE_NOT_RESTORED, str(e), device=",".join(sorted(cards)))

    def read(self, began: float, gpu_uuids: Mapping[GpuUuid, str], now: int) -> None:
        """Take a reading that began at `began`, on `clock`. `found`: the dirt of each card without a holder, as text, empty if
        the card is clean. `now`: Unix time."""
        self._left = {card: at for card, at in self._left.items() if at >= began}
        before, self._dirty = self._dirty, {}
        for card, text in gpu_uuids.items():
            if not text or card in self._left:
                continue
            dirt = before.get(card) or _Dirt(text, now, self.clock())
            dirt.text = text
            self._dirty[card] = dirt
            if not dirt.logged and self.clock() - dirt.began >= LASTS_S:
                dirt.logged = True
                self.log.warning(Event.DEVICE_DIRTY, text, device=card)
        for card, dirt in before.items():
            if dirt.logged and card not in self._dirty:
                self.log.info(Event.DEVICE_CLEAN, device=card)
