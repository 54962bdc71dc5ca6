"""Read and change the network devices of one namespace through one rtnetlink socket. Each error names the request and the
device.

A device is found only by its own name: a match by an alternative name is another device. But an alternative name is in use: no
other device can take it.

Tests: tests/node/test_netlink.py
"""

import errno
from typing import Final

from hooks.attach.kernel import KernelError, ask, refused
from hooks.attach.messages import Exchange, NetlinkMessage
from hooks.attach.rtnetlink import (
    parse_link,
    parse_route,
    render_add_address,
    render_add_altname,
    render_add_route,
    render_announce,
    render_delete_link,
    render_drop_altname,
    render_get_link,
    render_list_links,
    render_list_routes,
    render_move_link,
    render_rename_link,
    render_set_link,
    render_set_up,
    same_route,
)
from hooks.model.attachment import Link, Route

_TRIES: Final = 5  # maximum readings of a list that changes while it is read


class Links:
    """Call rtnetlink about the devices of one namespace: any number of calls, in any thread, one at a time."""

    def __init__(self, exchange: Exchange, where: str) -> None:
        self._exchange = exchange
        self._where = where  # "the host" or a path

    def find(self, name: str) -> Link | None:
        link = self.holder(name)
        return link if link is not None and link.name == name else None

    def holder(self, name: str) -> Link | None:
        """Return the device with this name, or with this alternative name."""
        try:
            (message, *_) = self._ask(render_get_link(name), f"read network device {name} of {self._where}")
        except KernelError as e:
            if refused(e, errno.ENODEV):
                return None
            raise
        return parse_link(message)

    def need(self, name: str) -> Link:
        link = self.find(name)
        if link is None:
            raise KernelError(f"cannot find network device {name} of {self._where}: ENODEV: it is not there")
        return link

    def announce(self, link: Link) -> None:
        self._ask(render_announce(link.index), f"set arp_notify of network device {link.name} of {self._where}")

    def set_up(self, link: Link, *, up: bool) -> None:
        self._ask(render_set_up(link.index, up=up), f"set network device {link.name} of {self._where} {'up' if up else 'down'}")

    def change(self, link: Link, *, mac: str | None, mtu: int | None) -> None:
        wanted = ", ".join(f"{what} {value}" for what, value in (("MAC", mac), ("MTU", mtu)) if value is not None)
        self._ask(render_set_link(link.index, mac=mac, mtu=mtu), f"set {wanted} of network device {link.name} of {self._where}")

    def rename(self, link: Link, to: str) -> None:
        self._ask(render_rename_link(link.index, to), f"rename network device {link.name} of {self._where} to {to}")

    def names(self) -> frozenset[str]:
        """Return all names in use."""
        messages = self._list(render_list_links(), f"list the network devices of {self._where}")
        return frozenset(name for link in map(parse_link, messages) for name in (link.name, *link.altnames))

    def free_altname(self, name: str) -> None:
        """Take this alternative name from the device that has it. A device's own name stays."""
        holder = self.holder(name)
        if holder is not None and holder.name != name:
            self.drop_altname(holder, name)

    def add_altname(self, link: Link, name: str) -> None:
        self._ask(render_add_altname(link.index, name), f"call network device {link.name} of {self._where} {name} too")

    def drop_altname(self, link: Link, name: str) -> None:
        doing = f"take alternative name {name} from network device {link.name} of {self._where}"
        try:
            self._ask(render_drop_altname(link.index, name), doing)
        except KernelError as e:
            if not refused(e, errno.ENOENT, errno.EINVAL):  # the device no longer has the name
                raise

    def drop_altnames(self, link: Link) -> None:
        for name in link.altnames:
            self.drop_altname(link, name)

    def move(self, link: Link, netns_fd: int, to: str, target: str) -> None:
        self._ask(
            render_move_link(link.index, netns_fd, to),
            f"move network device {link.name} of {self._where} to {target} as {to}",
        )

    def clear(self, link: Link) -> None:
        """Delete the VLAN or macvlan devices on top of this device. They would stay in the namespace when the device moves, and
        go on using it."""
        for message in self._list(render_list_links(), f"list the network devices of {self._where}"):
            upper = parse_link(message)
            if upper.lower == link.index:
                self._ask(render_delete_link(upper.index), f"delete {upper.name} on {link.name} of {self._where}")

    def add_address(self, link: Link, address: str) -> None:
        """Add an address. Do nothing if the device has it."""
        try:
            self._ask(render_add_address(link.index, address), f"add address {address} to {link.name} of {self._where}")
        except KernelError as e:
            if not refused(e, errno.EEXIST):
                raise

    def add_route(self, link: Link, route: Route) -> None:
        """Add a route. Do nothing if it exists. A route to the same network by another device or gateway is an error, because
        that route would win."""
        doing = f"add route {route.to}{f' via {route.via}' if route.via else ''} by {link.name} of {self._where}"
        try:
            self._ask(render_add_route(link.index, route), doing)
        except KernelError as e:
            if not refused(e, errno.EEXIST) or not self._has_route(link, route):
                raise

    def _has_route(self, link: Link, route: Route) -> bool:
        messages = self._list(render_list_routes(6 if ":" in route.to else 4), f"list the routes of {self._where}")
        result = (parse_route(message) for message in messages)
        return any(one is not None and one[0] == link.index and same_route(one[1], route) for one in result)

    def _list(self, request: bytes, doing: str) -> list[NetlinkMessage]:
        for remaining in reversed(range(_TRIES)):
            try:
                return self._ask(request, doing)
            except KernelError as e:
                if not refused(e, errno.EINTR) or not remaining:
                    raise
        raise AssertionError  # the last try returns or raises

    def _ask(self, request: bytes, doing: str) -> list[NetlinkMessage]:
        return ask(self._exchange, request, doing)
