import contextlib
import socket
import threading

from simnode.service import pump, shut


def test_bytes_go_through_and_one_end_ends_the_other() -> None:
    (sender, source), (sink, receiver) = socket.socketpair(), socket.socketpair()
    thread = threading.Thread(target=pump, args=[source, sink], daemon=True)
    thread.start()
    sender.sendall(b"as it is")
    assert receiver.recv(100) == b"as it is"
    sender.close()
    assert receiver.recv(100) == b""
    thread.join(10)
    assert (source.fileno(), sink.fileno()) == (-1, -1)
    receiver.close()


def test_shut_wakes_a_thread_that_waits_and_may_be_called_twice() -> None:
    one, other = socket.socketpair()

    def wait() -> None:
        with contextlib.suppress(OSError):  # EBADF, where the thread begins to wait after the end
            one.recv(1)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    shut(one)
    shut(one)
    thread.join(10)
    assert not thread.is_alive()
    other.close()
