"""Answer `systemctl show` from the unit files below a folder, in systemd 252's form.

Honest where `doctor.kubelet.unit` depends on it: drop-ins are merged in order, an empty line resets a list, %N is expanded, and
variables and environment files are not. `tests/node/test_doctor_systemd.py` compares it with a real systemd.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

_FOLDERS: Final = ("usr/lib/systemd/system", "usr/local/lib/systemd/system", "etc/systemd/system")


def show_all(root: Path, pids: Mapping[str, int], *, started_s: float = 0.0) -> str:
    """Return what it prints about all services. `pids`: main processes by name of the unit."""
    names = sorted({path.name for folder in _FOLDERS for path in (root / folder).glob("*.service")} | {"kubelet.service"})
    return "\n".join(show(root, name, pid=pids.get(name, 0), started_s=started_s) for name in names)


def show(root: Path, name: str, *, pid: int = 0, started_s: float = 0.0) -> str:
    main = [path for folder in _FOLDERS if (path := root / folder / name).is_file()][-1:]
    if not main:
        return f"MainPID=0\nEnvironment=\nId={name}\nLoadState=not-found\nFragmentPath=\nDropInPaths=\nNeedDaemonReload=no\n"
    by_name = {path.name: path for folder in _FOLDERS for path in (root / folder).glob(f"{name}.d/*.conf")}
    drop_ins = [by_name[key] for key in sorted(by_name)]
    lines = [line for path in (*main, *drop_ins) for line in _lines(path, name.removesuffix(".service"))]
    commands = [
        f"{{ argv[]={' '.join(shlex.split(value))} ; ignore_errors=no ; pid=0 }}" for value in _values(lines, "ExecStart")
    ]
    shown = [
        f"MainPID={pid}",
        f"ExecMainStartTimestampMonotonic={int(started_s * 1e6)}",
        *(f"ExecStart={command}" for command in commands),
        f"Environment={_join(word for value in _values(lines, 'Environment') for word in shlex.split(value))}",
        *(
            f"EnvironmentFiles={value.removeprefix('-')} (ignore_errors={'yes' if value.startswith('-') else 'no'})"
            for value in _values(lines, "EnvironmentFile")
        ),
        f"Id={name}",
        "LoadState=loaded",
        f"FragmentPath=/{main[0].relative_to(root)}",
        f"DropInPaths={_join(f'/{path.relative_to(root)}' for path in drop_ins)}",
        "NeedDaemonReload=no",
    ]
    return "".join(f"{line}\n" for line in shown)


def _lines(path: Path, name: str) -> Iterator[str]:
    return (line.strip() for line in path.read_text().replace("\\\n", " ").replace("%N", name).splitlines())


def _values(lines: Iterable[str], key: str) -> list[str]:
    result: list[str] = []
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == key:
            result = [*result, value.strip()] if value.strip() else []
    return result


def _join(text: Iterable[str]) -> str:
    quoted = (word.replace("\\", "\\\\").replace('"', '\\"') for word in text)
    return " ".join(f'"{word}"' if " " in word or "\\" in word else word for word in quoted)
