import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from lading.errors import ConfigError
from lading.signature import load_public_keys, parse_signature, sign, verifies

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_a_signature_verifies_its_text_and_no_other() -> None:
    signature = parse_signature(sign(KEY, "k1", '{"v":1}'))
    assert signature is not None
    assert signature.key_id == "k1"
    assert verifies(signature, '{"v":1}', KEY.public_key())
    assert not verifies(signature, '{"v": 1}', KEY.public_key())
    assert not verifies(signature, '{"v":1}', Ed25519PrivateKey.generate().public_key())


def test_the_domain_prefix_is_signed() -> None:
    bare = parse_signature(f"ed25519:k1:{base64.b64encode(KEY.sign(b'text')).decode()}")
    assert bare is not None
    assert not verifies(bare, "text", KEY.public_key())
    # The bytes that other implementations have to sign.
    KEY.public_key().verify(parse_signature(sign(KEY, "k1", "é")).value, b"lading.dev/assignment/v1\n\xc3\xa9")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "written",
    [
        "",
        "ed25519",
        "ed25519:k1:AAAA",
        "ed25519:k1:" + "A" * 86,
        "ed25519:k1:" + "A" * 88,
        "ed25519::" + "A" * 86 + "==",
        "ed25519:k 1:" + "A" * 86 + "==",
        "rsa:k1:" + "A" * 86 + "==",
        "ed25519:k1:" + "A" * 86 + "==\n",
        "ed25519:k1:" + "_" * 86 + "==",
    ],
)
def test_another_form_is_no_signature(written: str) -> None:
    assert parse_signature(written) is None


def test_public_keys_load_from_pem() -> None:
    keys = load_public_keys({"k1": PEM})
    signature = parse_signature(sign(KEY, "k1", "text"))
    assert signature is not None
    assert verifies(signature, "text", keys["k1"])


@pytest.mark.parametrize(
    ("key_id", "pem"),
    [
        ("k1", b""),
        ("k1", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
        ("k1", KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())),
        ("k1", generate_private_key(SECP256R1()).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)),
        ("k:1", PEM),
    ],
    ids=["empty", "damaged", "private", "another algorithm", "key id"],
)
def test_an_unusable_public_key_is_a_configuration_error_that_names_it(key_id: str, pem: bytes) -> None:
    with pytest.raises(ConfigError, match=key_id):
        load_public_keys({key_id: pem})


def test_a_key_id_that_could_not_be_parsed_is_not_signed_with() -> None:
    with pytest.raises(ConfigError):
        sign(KEY, "k:1", "text")
