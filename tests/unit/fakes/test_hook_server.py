"""Test that the fake answers as set by the test, over a plain gRPC channel."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protos.hook.v1 import hook_pb2 as hook
from tests.fakes.hook_server import KOORDLET, HookServer


async def call(path: Path, rpc: str, request: bytes, *, timeout_s: float = 5) -> bytes:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        answer: bytes = await channel.unary_unary(f"/lading.hook.v1.Hook/{rpc}", bytes, bytes)(request, timeout=timeout_s)
        return answer


async def test_the_server_answers_as_scripted_and_records_its_requests(short_folder: Path) -> None:
    path, request = short_folder / "s", hook.AdjustRequest(traceparent="t").SerializeToString()
    async with HookServer(path) as server:
        assert hook.AdjustResponse.FromString(await call(path, "Adjust", request)).HasField("adjustment")
        server.refuse("device-held", "no")
        assert hook.AdjustResponse.FromString(await call(path, "Adjust", request)).refusal.reason == "device-held"
        server.answer_bytes(b"\xff")
        assert await call(path, "Adjust", request) == b"\xff"
        server.fail(grpc.StatusCode.INTERNAL)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(path, "Adjust", request)
        assert error.value.code() is grpc.StatusCode.INTERNAL
        await call(path, "Observe", hook.ObserveRequest(grpc_status=3).SerializeToString())
        assert [r.traceparent for r in server.asked] == ["t"] * 4
        assert [r.grpc_status for r in server.observed] == [3]


async def test_a_call_hangs_until_it_is_released_and_another_service_is_unknown(short_folder: Path) -> None:
    async with HookServer(short_folder / "a") as server, HookServer(short_folder / "b", service=KOORDLET):
        server.hang()
        waiting = asyncio.create_task(call(short_folder / "a", "Adjust", b""))
        await server.arrived.wait()
        assert not waiting.done()
        server.release()
        assert hook.AdjustResponse.FromString(await waiting).HasField("adjustment")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(short_folder / "b", "Adjust", b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
