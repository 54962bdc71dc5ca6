import socket
import threading

from simnode.pump import pump, shut


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


def test_shut_wakes_whoever_waits_and_may_be_called_twice() -> None:
    one, other = socket.socketpair()
    said: list[bytes] = []
    thread = threading.Thread(target=lambda: said.append(one.recv(1)), daemon=True)
    thread.start()
    shut(one)
    shut(one)
    thread.join(10)
    assert not thread.is_alive()
    other.close()
