"""Give preparers the lists of a runtime that has no sandboxes."""

from collections.abc import Iterable

from hooks.model.grant import Grant
from hooks.model.inventory import Inventory
from hooks.ports import RuntimeLists


async def _nothing_read() -> None: ...


def seen(grants: Iterable[Grant], inventory: Inventory | None = None) -> RuntimeLists:
    return RuntimeLists(
        sandboxes=frozenset(),
        ready=frozenset(),
        live=frozenset(),
        stopped=(),
        grants=tuple(grants),
        inventory=inventory,
        read_again=_nothing_read,
    )
