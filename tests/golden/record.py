"""Records a CRI client's conversation with a real runtime, for the golden tests: for when a newer runtime is of interest.

    python -m tests.golden.record OUT.rec.gz [--api v1alpha2]

A private containerd (the one in PATH) and this project's CRI client, with a byte-for-byte tap between them. The format is that
of the recorded kubelet: records of `C` or `S` (who spoke), u32 big-endian length, and the bytes as one read returned them.
"""

import argparse
import contextlib
import gzip
import socket
import struct
import tempfile
import threading
from pathlib import Path

from simnode.containerd import PrivateContainerd, find_containerd
from simnode.cri import Cri, CriError


class Tap:
    """One client connection, joined to the runtime's socket; what passes is kept in order."""

    def __init__(self, listen: Path, runtime: Path) -> None:
        self.records: list[tuple[bytes, bytes]] = []
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen(1)
        self._runtime = runtime
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._runtime))
        threading.Thread(target=self._pump, args=(server, client, b"S"), daemon=True).start()
        self._pump(client, server, b"C")

    def _pump(self, source: socket.socket, target: socket.socket, who: bytes) -> None:
        while data := source.recv(65536):
            with self._lock:
                self.records.append((who, data))
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def converse(cri: Cri) -> None:
    """Pods as a kubelet makes them, every stage that a hook can ask for, and an error."""
    for number in range(3):
        annotations = {"lading.dev/gpus": "0"} if number else {}
        with cri.pod(f"golden-{number}", annotations=annotations) as pod:
            container = pod.run_container("main", env={"NUMBER": str(number)})
            container.sh("echo hello")
            cri.list_pods()
            cri.list_containers()
            container.status()
            container.stop()
            container.remove()
            with contextlib.suppress(CriError):  # not there any more: an answer with a status and details
                container.start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--api", default="v1", choices=("v1", "v1alpha2"))
    args = parser.parse_args()
    binaries = find_containerd()
    if binaries is None:
        parser.error("no containerd in PATH")
    with tempfile.TemporaryDirectory(prefix="lg") as folder, PrivateContainerd(Path(folder) / "c", binaries) as runtime:
        tap = Tap(Path(folder) / "tap.sock", runtime.socket)
        with runtime.client(via=Path(folder) / "tap.sock", api=args.api) as cri:
            converse(cri)
        records = list(tap.records)
    with gzip.GzipFile(args.out, "wb", mtime=0) as out:
        for who, data in records:
            out.write(who + struct.pack(">I", len(data)) + data)
    print(f"{args.out}: {len(records)} records, {sum(len(d) for _, d in records)} bytes, containerd {runtime.version}")


if __name__ == "__main__":
    main()
