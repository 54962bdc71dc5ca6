"""Store central's own claims: predictions, nominations, plans and reservations, at most one of each kind for each pod. `Books`
adds them up with the facts.

Tests: tests/unit/central/ledger/test_ledger.py
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from central.ledger.model import Claim, OwnClaim
from lading.vocabulary import PodUid

NO_CLAIMS: Final[Mapping[Claim, OwnClaim]] = MappingProxyType({})


class OwnClaims:
    def __init__(self) -> None:
        self._by_pod: dict[PodUid, dict[Claim, OwnClaim]] = {}

    def of(self, uid: PodUid) -> Mapping[Claim, OwnClaim]:
        return self._by_pod.get(uid, NO_CLAIMS)

    def all(self) -> Mapping[PodUid, Mapping[Claim, OwnClaim]]:
        return self._by_pod

    def of_kind(self, kind: Claim) -> Iterator[OwnClaim]:
        return (claims[kind] for claims in self._by_pod.values() if kind in claims)

    def put(self, kind: Claim, claim: OwnClaim) -> OwnClaim | None:
        """Store the claim. Return the claim that it replaces."""
        claims = self._by_pod.setdefault(claim.holder.pod, {})
        former = claims.get(kind)
        claims[kind] = claim
        return former

    def confirm(self, uid: PodUid) -> bool:
        """Confirm the reservation. Return False if there is none."""
        claims = self._by_pod.get(uid, {})
        if Claim.RESERVED not in claims:
            return False
        claims[Claim.RESERVED] = replace(claims[Claim.RESERVED], confirmed=True)
        return True

    def drop(self, uid: PodUid, kinds: Iterable[Claim]) -> list[OwnClaim]:
        """Drop the claims. Return those that existed."""
        claims = self._by_pod.get(uid)
        if claims is None:  # nearly every pod has no claims
            return []
        dropped = [claims.pop(kind) for kind in kinds if kind in claims]
        if not claims:
            del self._by_pod[uid]
        return dropped

    def expired(self, now: float) -> list[tuple[PodUid, Claim]]:
        """Return expired predictions and nominations only: a reservation ends by its outcome."""
        return [(uid, kind) for uid, claims in self._by_pod.items() for kind, claim in claims.items() if claim.until <= now]
