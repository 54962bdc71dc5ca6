"""End a pod as its node does: mark it as deleted, and then remove it."""

from dataclasses import replace

from central.ledger.ledger import Ledger
from lading.vocabulary import PodUid


def end_pod(ledger: Ledger, uid: PodUid) -> None:
    record = ledger.pod(uid)
    if record is not None:
        ledger.facts.set_pod(replace(record, version=record.version + 1, deleting=True))
    ledger.facts.remove_pod(uid)
