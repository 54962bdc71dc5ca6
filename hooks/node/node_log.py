"""Log a node's devices and containers: each change when it is observed, each problem once until it is over.

This module takes inventories, grants and bypassed containers, and writes log records. It decides nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from hooks.inventory.changes import Change, ChangeKind, decide_changes
from hooks.ledger.share_bypass import ShareBypass
from hooks.model.grant import Grant
from hooks.model.inventory import Inventory
from hooks.node.bypass import Bypassed
from lading.log import Event, Log

_MOST: Final = 1000  # maximum problems that are remembered as logged
_CHANGE_EVENT: Final = {
    ChangeKind.UNHEALTHY: Event.DEVICE_UNHEALTHY,
    ChangeKind.HEALTHY: Event.DEVICE_HEALTHY,
}


class NodeLog:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._logged: set[str] = set()

    def once(self, event: Event, message: str, **fields: object) -> None:
        text = f"{event} {message}"
        if text not in self._logged:
            if len(self._logged) > _MOST:
                self._logged.clear()
            self._logged.add(text)
            self._log.error(event, message, **fields)

    def over(self, event: Event, begins: str = "") -> None:
        """Forget the problems of this event that began with this text, so that they are logged again if they come back."""
        self._logged = {text for text in self._logged if not text.startswith(f"{event} {begins}")}

    def changes(self, old: Inventory, new: Inventory, grants: Collection[Grant]) -> None:
        """Log the changes. A device that becomes unhealthy under a container is logged with its pod."""
        first = old == Inventory()
        if first:
            self._log.info(Event.INVENTORY_CHANGED, gpus=len(new.gpus), pfs=len(new.pfs), vfs=len(new.vfs))
        for change in decide_changes(old, new):
            if not (first and change.kind is ChangeKind.ADDED):
                self._change(change, grants)

    def _change(self, change: Change, grants: Collection[Grant]) -> None:
        event = _CHANGE_EVENT.get(change.kind, Event.INVENTORY_CHANGED)
        write = self._log.warning if change.kind in {ChangeKind.UNHEALTHY, ChangeKind.PROBLEM} else self._log.info
        fields = {"device": change.device, "change": change.kind}
        holders = [grant for grant in grants if change.device in grant.devices.names]
        for holder in holders:
            write(event, change.reason, **fields, **owner_fields(holder))
        if not holders:
            write(event, change.reason, **fields)

    def bypassed(self, containers: Iterable[Bypassed]) -> None:
        for one in containers:
            self.once(
                Event.CONTAINER_BYPASSED,
                f"container {one.id[:12]} bypassed Lading: it runs without the devices of its pod's annotations. Proxy: check "
                "kubelet's --container-runtime-endpoint. NRI: check that a guard is connected",
                **owner_fields(one),
            )

    def missing(self, devices: Mapping[str, str]) -> None:
        """Log the VFs that another process moved. A VF that came back is logged again if it is moved again."""
        messages = {f"VF {device}: {reason}": device for device, reason in devices.items()}
        outdated = {text for text in self._logged if text.startswith(Event.VF_UNKNOWN_HOLDER)}
        self._logged -= outdated - {f"{Event.VF_UNKNOWN_HOLDER} {message}" for message in messages}
        for message, device in sorted(messages.items()):
            self.once(Event.VF_UNKNOWN_HOLDER, message, device=device)


def owner_fields(one: Grant | Bypassed | ShareBypass) -> dict[str, Any]:
    return {"pod_uid": one.pod, "namespace": one.namespace, "pod": one.pod_name, "container": one.container}
