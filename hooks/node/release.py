"""Release a device at a person's request: show the steps first, and carry them out with `--force`.

`release_decision` decides. This module asks the runtime which containers run, brings VFs back and frees grants, in that order.
The same code runs in the daemon, which owns the ledger, and in `lading-hooks release` on a node without a running daemon. The
ledger is read before the runtime is asked. A grant that has changed before it is freed is left alone: its pod came back
meanwhile.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from hooks.ledger.listing import LedgerContent
from hooks.ledger.period import End
from hooks.ledger.store import Ledger
from hooks.model.attachment import Attachment
from hooks.model.inventory import Inventory
from hooks.model.lists import Lists
from hooks.node.node_log import owner_fields
from hooks.node.release_decision import Release, decide_release, describe_freeing, find_alive, find_device, waiting_for
from lading.errors import LadingError
from lading.log import Event, Log
from lading.vocabulary import PciAddress


class Attachments(Protocol):
    """Represent the part of `attach.attacher` that this module uses."""

    async def force_release(self, vf: PciAddress, generation: int) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


async def find_release(
    text: str, inventory: Inventory, message: Callable[[], LedgerContent], lists: Callable[[], Awaitable[Lists]]
) -> Release:
    """Return the steps that a release of the device of this name would take now. Raise ConfigError if there is no such device;
    RuntimeUnavailableError if the running containers cannot be listed."""
    before = message()
    device = find_device(text, inventory, before)
    return decide_release(device, before, find_alive(await lists()))


async def carry_out(release: Release, ledger: Ledger, attachments: Attachments, log: Log, *, end: End) -> Outcome:
    """Carry out the release. `end`: the time and the person who decided it, for the history."""
    done: list[str] = []
    failed: list[str] = []
    for row in release.attachments:
        text, back = await _bring_back(row, ledger, attachments)
        (done if back else failed).extend(text)
    for grant in release.grants:
        try:
            now = ledger.find(*grant.key)
            if away := list(waiting_for(grant, ledger.journal.rows())):
                failed.append(f"cannot {describe_freeing(grant)}: {', '.join(away)} not back yet")
            elif now is not None and now != grant:
                failed.append(f"cannot {describe_freeing(grant)}: the pod came back meanwhile")
            else:
                for freed in ledger.release(*grant.key, end=end):
                    log.info(Event.GRANT_RELEASED, "by hand", **owner_fields(freed), devices=",".join(freed.devices.names))
                done.append(describe_freeing(grant))
        except LadingError as e:
            failed.append(f"cannot {describe_freeing(grant)}: {e}")
    return Outcome(done=tuple(done), failed=tuple(failed))


async def _bring_back(row: Attachment, ledger: Ledger, attachments: Attachments) -> tuple[list[str], bool]:
    try:
        text = await attachments.force_release(row.bdf, row.generation)
    except LadingError as e:
        return [f"cannot release VF {row.bdf}: {e}"], False
    now = ledger.journal.find(row.bdf)
    return text, now is None or now.generation != row.generation


def read_content(ledger: Ledger) -> LedgerContent:
    return LedgerContent(grants=ledger.grants(), attachments=ledger.journal.rows(), stopped=dict(ledger.tombstones()))
