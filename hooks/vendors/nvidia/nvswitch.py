"""Read a board's table of NVSwitch partitions: the sets of GPUs, by module id, that can form a separate partition.

A table has a shipped name, or is a file of the same form. A file of another form is refused, as is a repeated id or module, or
a partition without modules; the error names the place. An operator names the table, because Fabric Manager reports its built-in
table only over its own socket, which a node need not open.

    {"board": "HGX H100", "source": "where it is from", "partitions": [{"id": 0, "modules": [1, 2, 3, 4, 5, 6, 7, 8]}, …]}

Source: NVIDIA Fabric Manager user guide, "Shared NVSwitch Virtualization Model"; `fmpm -l` prints a machine's own table.
"""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from hooks.model.inventory import Partition
from lading.errors import ConfigError

TABLES: Final = Path(__file__).parent / "partitions"
_MOST: Final = 64  # maximum partitions, and modules of a partition, as in the CRD. Two A100 boards: 31 partitions, 16 modules

_Number = Annotated[int, msgspec.Meta(ge=0, le=4095)]
_Module = Annotated[int, msgspec.Meta(ge=1, le=4095)]  # NVML's module ids count from 1; 0 means a card on no board


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _Number
    modules: Annotated[tuple[_Module, ...], msgspec.Meta(min_length=1, max_length=_MOST)]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partitions: Annotated[tuple[_Row, ...], msgspec.Meta(min_length=1, max_length=_MOST)]
    board: str = ""
    source: str = ""


def shipped_tables() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in TABLES.glob("*.json")))


def read_partitions(table: str) -> tuple[Partition, ...]:
    """Return a table's partitions, in its order. `table`: a shipped name, a path (any text with a slash), or empty for none.
    Raise ConfigError."""
    if not table:
        return ()
    path = Path(table) if "/" in table else TABLES / f"{table}.json"
    if "/" not in table and table not in shipped_tables():
        raise ConfigError(f"no NVSwitch table is called {table!r}", hint=f"known: {', '.join(shipped_tables())}; or a path")
    try:
        result = msgspec.json.decode(path.read_bytes(), type=_Table)
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}") from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"cannot use {path}: {e}", hint=f"its form is that of {TABLES / 'h100.json'}") from e
    if wrong := _find_repeated(result.partitions):
        raise ConfigError(f"cannot use {path}: {wrong}")
    return tuple(Partition(id=row.id, modules=row.modules) for row in result.partitions)


def _find_repeated(rows: tuple[_Row, ...]) -> str:
    first: dict[int, int] = {}
    for place, row in enumerate(rows):
        if first.setdefault(row.id, place) != place:
            return f"$.partitions[{place}].id is {row.id}, as that of $.partitions[{first[row.id]}]"
        for number, module in enumerate(row.modules):
            if module in row.modules[:number]:
                return f"$.partitions[{place}].modules names module {module} twice"
    return ""
