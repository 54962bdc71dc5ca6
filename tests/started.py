"""Start daemons for tests, and end them: their folders have short names, and a test that fails shows the ends of their logs."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from simnode import leftovers
from simnode.build import SimNode, build
from simnode.daemons import LadingNode, Runtime
from tests.logs import LOGS

NO_METRICS: Final[Mapping[str, object]] = {"metrics": ""}  # several nodes run on this machine at a time


@contextlib.contextmanager
def short_folder(prefix: str = "lading-") -> Iterator[Path]:
    """Make a folder with a short name, because a Unix socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    yield folder
    leftovers.remove_tree(folder)


class Started(contextlib.ExitStack):
    """Keep what fixtures start until the end of a `with` block."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self._logs = config.stash.setdefault(LOGS, [])

    def folder(self, prefix: str = "lading-") -> Path:
        return self.enter_context(short_folder(prefix))

    def show(self, *logs: Path) -> None:
        """Have a test that fails during the block show the ends of these logs."""
        for log in logs:
            self._logs.append(log)
            self.callback(self._logs.remove, log)

    def lading(
        self,
        runtime: Runtime,
        node: SimNode | str = "demo-8gpu",
        *,
        folder: Path | None = None,
        hooks: Mapping[str, object] | None = None,
        proxy: Mapping[str, object] | None = None,
        **options: Any,
    ) -> LadingNode:
        """Start the daemons on a simulated node, or on a new one of a profile. `hooks` and `proxy`: their settings."""
        folder = folder or self.folder()
        lading = LadingNode(
            folder,
            node=node if isinstance(node, SimNode) else build(node, folder / "node"),
            runtime=runtime,
            hooks_settings={**NO_METRICS, **(hooks or {})},
            proxy_settings={**NO_METRICS, **(proxy or {})},
            **options,
        )
        self.show(*lading.logs)
        return self.enter_context(lading)
