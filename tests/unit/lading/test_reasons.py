"""Test the closed list of reasons of nodes and central: each is explained once, with what to do."""

import re
from collections import Counter

import pytest

from central.controllers.event_reasons import EventReason
from central.request.reasons import OfBinding, OfPod
from central.search.placement import Missing
from lading.http2.messages import GrpcStatus
from lading.reasons import Explained, Reason, render_refusal
from tests.docs import ROOT

ALL = [*Reason, *Missing, *OfPod, *OfBinding]
BY_BOTH = {"not-reconciled"}  # codes that mean the same on a node and in central
LONGEST = 25  # words of a sentence


def test_every_reason_is_on_the_page_once() -> None:
    named = re.findall(r'^\| <a id="([A-Za-z-]+)"></a>', (ROOT / "docs/reasons.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted({code.value for code in (*ALL, *EventReason)})


def test_a_code_means_one_thing() -> None:
    assert {code for code, times in Counter(code.value for code in ALL).items() if times > 1} == BY_BOTH
    assert all(len({one.remedy for one in ALL if one == code}) == 1 for code in BY_BOTH)


def test_codes_are_the_names() -> None:
    assert [code.value for code in ALL] == [code.name.lower().replace("_", "-") for code in ALL]
    assert [reason.value for reason in EventReason] == [reason.name.title().replace("_", "") for reason in EventReason]


@pytest.mark.parametrize("code", [*ALL, *EventReason])
def test_texts_are_short_sentences(code: Explained) -> None:
    for text in (code.meaning, code.remedy):
        message = re.sub(r"`[^`]*`", "code", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
        assert max(len(sentence.split()) for sentence in re.split(r"[.;] ", message)) <= LONGEST
        assert text.endswith(".")
        assert "|" not in text  # it would end a cell of the page's table


def test_a_remedy_on_a_terminal_has_no_links() -> None:
    assert "unless it lasts" in Reason.NOT_RECONCILED.plain_remedy
    assert "`/readyz` on the node" in Reason.NOT_RECONCILED.plain_remedy
    assert Reason.ANNOTATION_MALFORMED.plain_remedy.startswith("correct it and create the pod again; docs/reference.md has")


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("of-another-hook-server", GrpcStatus.FAILED_PRECONDITION),
        (Reason.DEVICE_HELD, GrpcStatus.FAILED_PRECONDITION),
        (Reason.HOOK_UNAVAILABLE, GrpcStatus.UNAVAILABLE),
        (Reason.HOOK_TIMEOUT, GrpcStatus.UNAVAILABLE),
        (Reason.NO_REGISTRATION, GrpcStatus.UNAVAILABLE),
        (Reason.NOT_PREPARED, GrpcStatus.UNAVAILABLE),
        (Reason.UNGRANTED, GrpcStatus.UNAVAILABLE),
        (Reason.ANNOTATION_RESERVED, GrpcStatus.INVALID_ARGUMENT),
        (Reason.REQUEST_UNREADABLE, GrpcStatus.INVALID_ARGUMENT),
        (Reason.INTERNAL, GrpcStatus.INTERNAL),
    ],
)
def test_a_refusal_has_a_status_and_says_its_reason_on_one_line(reason: str, status: GrpcStatus) -> None:
    assert render_refusal(reason, "it\nis") == (status, f"lading: {reason}: it\\x0ais")
