"""Serve a runtime that answers every call at once with prepared bytes, because a real runtime needs time for a 2 MB list.

`ListContainers` answers a real ListContainersResponse of at least 2 MB, shaped as containerd's; any other method answers an
empty message. C-core does the HTTP/2 work; no message is parsed or built for a call.

    python -m bench.backend LISTEN
"""

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

from protos.cri.runtime.v1 import api_pb2 as cri

LIST_BYTES: Final = 2_000_000
LIST_CONTAINERS: Final = "/runtime.v1.RuntimeService/ListContainers"
_OPTIONS: Final = (("grpc.max_receive_message_length", 16 << 20), ("grpc.max_send_message_length", -1))


class Prepared(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self) -> None:
        self._list = render_list(LIST_BYTES)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        reply = self._list if handler_call_details.method == LIST_CONTAINERS else b""
        return grpc.unary_unary_rpc_method_handler(lambda request, context: reply)


def render_list(at_least: int) -> bytes:
    """Return a serialised ListContainersResponse of `at_least` bytes or slightly more, with as many containers as needed."""
    one = cri.ListContainersResponse(containers=[_container(0)]).ByteSize()
    count = -(-at_least // one)
    return cri.ListContainersResponse(containers=[_container(number) for number in range(count)]).SerializeToString()


def _container(number: int) -> cri.Container:
    uid = f"{number:08x}-6bf7-4dfb-ac05-a2fa5f4dbf0e"
    identity = {
        "io.kubernetes.container.name": "train",
        "io.kubernetes.pod.name": f"job-{number:08d}",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": uid,
    }
    return cri.Container(
        id=f"{number:064x}",
        pod_sandbox_id=f"{number + 1:064x}",
        metadata=cri.ContainerMetadata(name="train", attempt=1),
        image=cri.ImageSpec(image=f"sha256:{number:064x}", user_specified_image="registry.example/train:latest"),
        image_ref=f"sha256:{number:064x}",
        state=cri.CONTAINER_RUNNING,
        created_at=1_790_000_000_000_000_000 + number,
        labels=identity,
        annotations={
            "io.kubernetes.container.hash": f"{number:08x}",
            "io.kubernetes.container.restartCount": "1",
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "30",
        },
    )


def serve(listen: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    server = grpc.server(ThreadPoolExecutor(4), options=_OPTIONS)
    server.add_generic_rpc_handlers((Prepared(),))
    server.add_insecure_port(f"unix:{listen}")
    server.start()
    ended.wait()
    server.stop(None)


if __name__ == "__main__":
    serve(sys.argv[1])
