"""Query the loopback device, which any user may do."""

from pathlib import Path

from hooks.attach.messages import parse_answer, stamp
from hooks.attach.rtnetlink import parse_link, render_get_link
from hooks.attach.sockets import NETLINK_ROUTE, NetlinkSocket


def test_exchanges_follow_one_another() -> None:
    with NetlinkSocket(NETLINK_ROUTE) as socket:
        names = [parse_link(parse_answer(socket.exchange(render_get_link("lo")))[0]).name for _ in range(3)]
    assert names == ["lo"] * 3


def test_an_answer_to_another_request_is_not_taken() -> None:
    with NetlinkSocket(NETLINK_ROUTE) as socket:
        socket.sendto(stamp(render_get_link("absent"), 1000), (0, 0))
        (message,) = parse_answer(socket.exchange(render_get_link("lo")))
    assert parse_link(message).name == "lo"


def test_a_closed_socket_leaves_no_descriptor() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    with NetlinkSocket(NETLINK_ROUTE) as socket:
        socket.exchange(render_get_link("lo"))
    assert sorted(Path("/proc/self/fd").iterdir()) == before
