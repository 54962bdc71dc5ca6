"""Forward connections from a Service's address on this machine to the address in its EndpointSlice, as kube-proxy does.

Bytes are passed unchanged, and a connection stays with its first endpoint. An endpoint that does not answer is a refused
connection. While the API server does not answer, the last observed endpoint is used.
"""

import contextlib
import socket
import threading

from simnode.child import Block
from simnode.kube_api import KubeApi, KubeError


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy from `source` to `sink`. Blocks: use one thread for each direction."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    shut(source)
    shut(sink)


def shut(end: socket.socket) -> None:
    """Wake all threads that wait in the socket, which close(2) alone does not do. May be called twice."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


class Service(Block):
    def __init__(self, api: KubeApi, *, namespace: str, name: str) -> None:
        """Listen on a free port. `name` is also the EndpointSlice's, as for a Service without a selector."""
        self._api = api
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}"
        self._endpoint: tuple[str, int] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])

    def _begin(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()
        self._ends.callback(shut, self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._join, args=[near], daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self._find_endpoint()
        with contextlib.suppress(OSError):
            if self._endpoint is not None:
                far = socket.create_connection(self._endpoint)
                threading.Thread(target=pump, args=[far, near], daemon=True).start()
                pump(near, far)
        shut(near)

    def _find_endpoint(self) -> None:
        with contextlib.suppress(KubeError):
            result = self._api.call("GET", self._path)
            self._endpoint = result["endpoints"][0]["addresses"][0], result["ports"][0]["port"]
