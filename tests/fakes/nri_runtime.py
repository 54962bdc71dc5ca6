"""Run the runtime's side of NRI on a real socket: register a plugin as containerd does, and make the test's calls."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeVar

from google.protobuf.message import Message

from hooks.frontends.nri.conversation import NriCall, NriCallError, NriConversation, Reply
from hooks.frontends.nri.plugin import PLUGIN_SERVICE
from hooks.frontends.nri.wire import RUNTIME
from protos.nri.v1alpha1 import nri_pb2 as nri

M = TypeVar("M", bound=Message)
WAIT_S = 10.0


class Connected:
    """Represent one connected plugin."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._conversation = NriConversation(answers_on=RUNTIME)
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self.registered: asyncio.Future[nri.RegisterPluginRequest] = asyncio.get_running_loop().create_future()
        self.refuse_registration = ""
        self.closed = asyncio.Event()

    async def read(self) -> None:
        while data := await self._reader.read(1 << 16):
            for one in self._conversation.receive(data):
                if isinstance(one, Reply):
                    self._replies.pop(one.stream).set_result(one)
                else:
                    self._called(one)
        self.closed.set()

    def _called(self, call: NriCall) -> None:
        request = nri.RegisterPluginRequest.FromString(call.payload)
        if self.refuse_registration:
            self._writer.write(self._conversation.refuse(call, NriCallError(2, self.refuse_registration)))
        else:
            self._writer.write(self._conversation.answer(call, b""))
            self.registered.set_result(request)

    async def ask(self, method: str, request: Message, answer: type[M], *, timeout_s: float = 0.0, pause_s: float = 0.0) -> M:
        """Call the plugin, which is notified of `timeout_s`. Send the call in two halves, with a pause between them. Raise
        NriCallError if the plugin refuses."""
        stream, data = self._conversation.call(PLUGIN_SERVICE, method, request.SerializeToString(), timeout_s=timeout_s)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[stream] = reply
        half = len(data) // 2
        self._writer.write(data[:half])
        await asyncio.sleep(pause_s)
        self._writer.write(data[half:])
        async with asyncio.timeout(WAIT_S):
            result = await reply
        if result.error is not None:
            raise result.error
        return answer.FromString(result.payload)

    async def configure(self, version: str, *pods: nri.PodSandbox, parts: int = 1) -> int:
        """Configure and synchronize it, the list in so many parts. Return the events that it subscribes to."""
        async with asyncio.timeout(WAIT_S):
            await self.registered
        request = nri.ConfigureRequest(runtime_name="containerd", runtime_version=version)
        events = (await self.ask("Configure", request, nri.ConfigureResponse)).events
        for part in range(1, parts + 1):
            some = nri.SynchronizeRequest(pods=pods if part == 1 else (), more=part < parts)
            assert (await self.ask("Synchronize", some, nri.SynchronizeResponse)).more is some.more
        return events

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def drop(self) -> None:
        self._writer.close()


class NriRuntime:
    """Listen on the socket. Connected plugins are in `plugins`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new: asyncio.Queue[Connected] = asyncio.Queue()
        self._reading: set[asyncio.Task[None]] = set()
        self.refuse_registration = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._accept, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plugin = Connected(reader, writer)
        plugin.refuse_registration = self.refuse_registration
        task = asyncio.create_task(plugin.read())
        self._reading.add(task)
        self._new.put_nowait(plugin)
        try:
            await asyncio.wait({task})
        finally:
            writer.close()

    async def plugin(self) -> Connected:
        """Return the next plugin that connects."""
        async with asyncio.timeout(WAIT_S):
            return await self._new.get()

    async def registered(self, version: str = "2.1.9", pods: Sequence[nri.PodSandbox] = ()) -> Connected:
        """Return the next plugin, configured and synchronized."""
        plugin = await self.plugin()
        await plugin.configure(version, *pods)
        return plugin
