"""Check which devices containers can really open, independently of the ledger and the runtime's lists."""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.vocabulary import GRANT, PREFIX
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.cri import Container
from tests.node.site import OPENS, Site

_FOLDER: Final = "/tmp/referee"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    ungranted: list[str]  # containers of guarded pods that were created without a grant
    opened: Mapping[str, list[str]]  # running containers of guarded pods, and the cards that each can open

    @property
    def bare(self) -> list[str]:
        return self.ungranted + [name for name, cards in self.opened.items() if not cards]

    @property
    def double(self) -> list[str]:
        """Return the cards that more than one container can open."""
        every = [card for cards in self.opened.values() for card in cards]
        return sorted({card for card in every if every.count(card) > 1})


class Referee:
    """Check every container of every guarded pod of the runtime. Each of these pods requests a card."""

    def __init__(self, site: Site) -> None:
        self._site = site
        cards = [site.card(index) for index in range(len(site.node.profile.gpus))]
        self._numbers = {card: (site.node.root / card[1:]).lstat().st_rdev for card in cards}

    def judge(self) -> Verdict:
        guarded = {pod.id for pod in self._site.direct.list_pods() if any(key.startswith(PREFIX) for key in pod.annotations)}
        there = [one for one in self._site.direct.list_containers() if one.pod_sandbox_id in guarded]
        return Verdict(
            ungranted=[one.id for one in there if not self._has_grant(one.id)],
            opened={one.id: self._open_cards(one.id) for one in there if one.state == cri.CONTAINER_RUNNING},
        )

    def _open_cards(self, container_id: str) -> list[str]:
        """Return the cards of the node that the container can open: it makes a device node of each number, and tries."""
        made = (
            f"[ -e {name} ] || mknod {name} c {os.major(it)} {os.minor(it)}" for name, it in enumerate(self._numbers.values())
        )
        names = " ".join(map(str, range(len(self._numbers))))
        container = Container(self._site.direct, container_id, Path())
        tried = container.sh("; ".join([f"mkdir -p {_FOLDER}; cd {_FOLDER}", *made, f"try-open {names}"])).split()
        outcomes = (errno.errorcode.get(int(number), "ok") for number in tried)
        return [card for card, outcome in zip(self._numbers, outcomes, strict=True) if outcome in OPENS]

    def _has_grant(self, container_id: str) -> bool:
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        return GRANT in self._site.direct.call("ContainerStatus", request, cri.ContainerStatusResponse).info["info"]
