"""A second front end: one JSON object a line over a Unix socket. `{"sandbox": {…}, "container": {…}}` asks for an adjustment,
`{"stop": {…}}` says that a sandbox is about to be stopped."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hooks.model.assignment import Refusal
from hooks.model.canonical import without_defaults
from hooks.model.container import Container, Sandbox
from hooks.ports import NodePort


class Lines:
    def __init__(self, node: NodePort, path: Path) -> None:
        self._node = node
        self._path = path
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    def conditions(self) -> Mapping[str, str]:
        return {}

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            async for line in reader:
                writer.write(json.dumps(await self._answer(json.loads(line))).encode() + b"\n")

    async def _answer(self, asked: dict[str, Any]) -> Any:
        if "stop" in asked:
            undone = self._node.stopping(msgspec.convert(asked["stop"], Sandbox))
            if undone is not None:
                await undone
            return None
        sandbox, container = msgspec.convert(asked["sandbox"], Sandbox), msgspec.convert(asked["container"], Container)
        answer = self._node.adjust_container(sandbox, container)
        if not hasattr(answer, "adjustment") and not isinstance(answer, Refusal):
            answer = await answer
        if isinstance(answer, Refusal):
            return {"refused": answer.reason}
        return msgspec.to_builtins(without_defaults(answer.adjustment))
