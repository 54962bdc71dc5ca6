import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hooks.forms.annotations import parse_assignment
from hooks.model.assignment import Assignment, Form, Refusal, Trust
from lading.errors import ConfigError
from lading.reasons import Reason
from lading.signature import sign
from lading.vocabulary import MAX_KEYS, PodUid

POD = PodUid("5f0d2c61-0000-4000-8000-000000000001")
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
TEXT = json.dumps({"v": 1, "pod": POD, "node": "n1", "gen": 7, "containers": {"train": {}}})

SIGNED = Trust(accepted=frozenset({Form.SIGNED}), keys={"k1": KEY.public_key(), "k2": OTHER_KEY.public_key()})
UNSIGNED = Trust(accepted=frozenset({Form.UNSIGNED}))
BOTH = Trust(accepted=frozenset({Form.SIGNED, Form.UNSIGNED}), keys=SIGNED.keys)
MANUAL = Trust(accepted=frozenset({Form.MANUAL}))
EVERY_TRUST = [SIGNED, UNSIGNED, BOTH, MANUAL]


def parse(annotations: Mapping[str, str], trust: Trust) -> Assignment | Refusal | None:
    """Parse the annotations. A key that begins with a dot gets Lading's prefix: `.gpus`."""
    full = {f"lading.dev/{key[1:]}" if key[0] == "." else key: value for key, value in annotations.items()}
    return parse_assignment(full, pod=POD, node="n1", trust=trust)


def reason(annotations: Mapping[str, str], trust: Trust) -> Reason:
    result = parse(annotations, trust)
    assert isinstance(result, Refusal), result
    return result.reason


def signed(text: str = TEXT, *, signature: str | None = None) -> dict[str, str]:
    return {".assignment": text, ".assignment-signature": signature or sign(KEY, "k1", text)}


@pytest.mark.parametrize("trust", EVERY_TRUST)
def test_a_pod_without_our_keys_has_no_assignment(trust: Trust) -> None:
    assert parse({}, trust) is None
    assert parse({"note": "x", "example.com/gpus": "0", "lading.developer/gpus": "0", ".later": "{}"}, trust) is None


@pytest.mark.parametrize("trust", EVERY_TRUST)
def test_a_pod_with_more_keys_than_a_pod_may_have_is_refused(trust: Trust) -> None:
    assert parse({f".later-{i}": "" for i in range(MAX_KEYS)}, trust) is None
    assert reason({f".later-{i}": "" for i in range(MAX_KEYS + 1)}, trust) == Reason.ANNOTATION_MALFORMED


@pytest.mark.parametrize("key", [".gpus", ".vfs.train"])
def test_a_key_that_does_not_exist_is_refused_beside_devices_named_by_hand(key: str) -> None:
    result = parse({key: "0", ".gpu-models": "H100"}, MANUAL)
    assert isinstance(result, Refusal)
    assert result.reason is Reason.ANNOTATION_MALFORMED
    assert "lading.dev/gpu-model" in result.message


def test_a_key_that_the_node_does_not_know_yet_is_ignored_beside_an_assignment() -> None:
    """Check that such a key is ignored: a newer central may know it, and has checked the pod's keys."""
    assert parse({**signed(), ".later": "x"}, SIGNED) == parse(signed(), SIGNED)


def test_a_key_of_another_system_is_ignored_where_the_configuration_lists_it() -> None:
    listed = replace(MANUAL, foreign=frozenset({"lading.dev/billing"}))
    assert parse({".gpus": "0", ".billing": "x"}, listed) == parse({".gpus": "0"}, MANUAL)


def test_manual() -> None:
    result = parse({".gpus": "0", ".vfs.train": "1"}, MANUAL)
    assert isinstance(result, Assignment)
    assert result.form == Form.MANUAL


def test_signed() -> None:
    result = parse(signed(), SIGNED)
    assert isinstance(result, Assignment)
    assert (result.form, result.key_id, result.gen) == (Form.SIGNED, "k1", 7)
    by_second = parse(signed(signature=sign(OTHER_KEY, "k2", TEXT)), BOTH)
    assert isinstance(by_second, Assignment)
    assert by_second.key_id == "k2"


def test_unsigned() -> None:
    for trust in (UNSIGNED, BOTH):
        result = parse({".assignment": TEXT}, trust)
        assert isinstance(result, Assignment)
        assert (result.form, result.key_id) == (Form.UNSIGNED, "")


def test_where_unsigned_is_enough_a_signature_is_not_checked() -> None:
    result = parse(signed(signature="nonsense"), UNSIGNED)
    assert isinstance(result, Assignment)
    assert result.form == Form.UNSIGNED


def test_a_signature_that_is_there_must_be_right_where_signatures_are_accepted() -> None:
    for trust in (SIGNED, BOTH):
        assert reason(signed(signature="nonsense"), trust) == Reason.SIGNATURE_INVALID
        assert reason(signed(signature=sign(OTHER_KEY, "k1", TEXT)), trust) == Reason.SIGNATURE_INVALID
        assert reason(signed(signature=sign(KEY, "k3", TEXT)), trust) == Reason.SIGNATURE_KEY_UNKNOWN
        assert reason(signed(TEXT + " ", signature=sign(KEY, "k1", TEXT)), trust) == Reason.SIGNATURE_INVALID


def test_a_text_that_no_one_signed_is_not_parsed() -> None:
    assert reason(signed("{", signature=sign(KEY, "k1", TEXT)), SIGNED) == Reason.SIGNATURE_INVALID
    assert reason(signed("{"), SIGNED) == Reason.ANNOTATION_MALFORMED


def test_a_signed_assignment_is_still_for_one_pod_on_one_node() -> None:
    text = TEXT.replace(POD, "another")
    assert reason(signed(text), SIGNED) == Reason.ASSIGNMENT_OTHER_POD
    text = TEXT.replace("n1", "n2")
    assert reason(signed(text), SIGNED) == Reason.ASSIGNMENT_OTHER_NODE


def test_forms_that_this_node_does_not_accept() -> None:
    assert reason({".assignment": TEXT}, SIGNED) == Reason.SIGNATURE_MISSING
    assert reason({".assignment": TEXT}, MANUAL) == Reason.FORM_NOT_ACCEPTED
    assert reason(signed(), MANUAL) == Reason.FORM_NOT_ACCEPTED
    for trust in (SIGNED, UNSIGNED, BOTH):
        assert reason({".gpus": "0"}, trust) == Reason.FORM_NOT_ACCEPTED
        assert reason({".vfs.train": "nonsense /"}, trust) == Reason.FORM_NOT_ACCEPTED
    assert reason(signed(), Trust(accepted=frozenset())) == Reason.FORM_NOT_ACCEPTED


@pytest.mark.parametrize("trust", EVERY_TRUST)
def test_both_forms_are_a_conflict_wherever_the_pod_runs(trust: Trust) -> None:
    assert reason({".gpus.train": "0", ".assignment": TEXT}, trust) == Reason.ANNOTATION_CONFLICT
    assert reason({".vfs": "1", **signed()}, trust) == Reason.ANNOTATION_CONFLICT
    assert reason({".gpus": "0", ".topology": "switch"}, trust) == Reason.ANNOTATION_CONFLICT


@pytest.mark.parametrize("trust", EVERY_TRUST)
def test_the_grant_is_the_nodes(trust: Trust) -> None:
    assert reason({".grant": "{}"}, trust) == Reason.ANNOTATION_RESERVED
    assert reason({".attachments": "[]"}, trust) == Reason.ANNOTATION_RESERVED
    assert reason({".grant": "", **signed(), ".gpus": "0"}, trust) == Reason.ANNOTATION_RESERVED


@pytest.mark.parametrize("key", [".rdma-policy", ".topology", ".gpu-model", ".policy", ".isolation", ".gpu-core-limit.c"])
def test_a_pod_that_asked_for_placement_and_got_none(key: str) -> None:
    assert reason({key: "x"}, SIGNED) == Reason.ASSIGNMENT_MISSING
    assert isinstance(parse({key: "x", **signed()}, SIGNED), Assignment)


def test_a_signature_alone() -> None:
    assert reason({".assignment-signature": sign(KEY, "k1", TEXT)}, SIGNED) == Reason.ANNOTATION_MALFORMED


@pytest.mark.parametrize(
    ("key", "right"),
    [
        (".gpu", "lading.dev/gpus"),
        (".vf", "lading.dev/vfs"),
        (".gpu.train", "lading.dev/gpus.train"),
        (".gpus-train", "lading.dev/gpus.train"),
        (".vfs_side", "lading.dev/vfs.side"),
        (".GPUs", "lading.dev/gpus"),
        (".Vfs.Train", "lading.dev/vfs.Train"),
        (".gpu-memory", "resources.limits"),
        (".rdma", "resources.limits"),
    ],
)
def test_a_key_that_would_do_nothing_is_reported_what_is_right(key: str, right: str) -> None:
    result = parse({key: "0"}, MANUAL)
    assert isinstance(result, Refusal)
    assert result.reason == Reason.ANNOTATION_MALFORMED
    assert right in result.message


@pytest.mark.parametrize("key", [".gpu-partition", ".gpusets", ".vfio", ".", ".gpu-", ".assignments", ".grant.x"])
def test_other_keys_are_a_newer_versions(key: str) -> None:
    assert parse({key: "x"}, MANUAL) is None


def test_a_key_from_the_socket_can_be_anything() -> None:
    for key in (".gpus." + "x" * 100_000, ".gpu.\ud800\x1b\n", ".gpus.\u202e"):
        result = parse({key: "0"}, MANUAL)
        assert isinstance(result, Refusal)
        assert len(result.message.encode()) < 600


def test_manual_and_central_are_not_trusted_together() -> None:
    with pytest.raises(ConfigError):
        Trust(accepted=frozenset({Form.MANUAL, Form.SIGNED}))
