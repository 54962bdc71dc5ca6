"""Print the certificates of kube-scheduler and central as Secrets for `kubectl apply -f -`: `lading-central new-certificates`.

The command takes a namespace and a number of days, and prints two Secrets on stdout, each with tls.crt, tls.key and ca.crt. The
authority's key signs only these two certificates and is not kept. To renew them, run the command again and restart both
Deployments.

Source: RFC 5280; Kubernetes, "TLS Secrets".
"""

import argparse
import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lading.vocabulary import CENTRAL, SYSTEM_NAMESPACE

SCHEDULER: Final = "lading-scheduler"
DAYS: Final = 3650
_CLOCK_SKEW: Final = timedelta(hours=1)  # maximum time by which a client's clock may be behind
_SIGNS: Final = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def new_certificates(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-central new-certificates",
        description="Prints the Secrets with which kube-scheduler and central authenticate each other, for kubectl apply -f -",
    )
    parser.add_argument("--namespace", default=SYSTEM_NAMESPACE, help=f"[{SYSTEM_NAMESPACE}]")
    parser.add_argument("--days", type=int, default=DAYS, help=f"how long they are valid [{DAYS}]")
    args = parser.parse_args(argv)
    for secret in render_secrets(args.namespace, days=args.days):
        print("---")
        print(msgspec.json.format(msgspec.json.encode(secret), indent=1).decode())


def render_secrets(namespace: str, *, days: int) -> tuple[dict[str, Any], ...]:
    """Return the Secrets of central and of the scheduler, signed by one new authority."""
    key, now = generate_private_key(SECP256R1()), datetime.now(UTC)
    until = now + timedelta(days=days)
    issuer = _name("lading-ca")
    unlimited = x509.BasicConstraints(ca=True, path_length=0)
    authority = (
        _builder(issuer, key, issuer, now, until, key)
        .add_extension(unlimited, critical=True)
        .add_extension(_SIGNS, critical=True)
        .sign(key, hashes.SHA256())
    )
    secrets = []
    for name, usage, host in (
        (CENTRAL, ExtendedKeyUsageOID.SERVER_AUTH, f"{CENTRAL}.{namespace}.svc"),
        (SCHEDULER, ExtendedKeyUsageOID.CLIENT_AUTH, ""),
    ):
        own = generate_private_key(SECP256R1())
        builder = _builder(_name(name), own, issuer, now, until, key).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=True
        )
        if host:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        secrets.append(_secret(namespace, f"{name}-tls", builder.sign(key, hashes.SHA256()), own, authority))
    return tuple(secrets)


def _builder(
    subject: x509.Name,
    key: EllipticCurvePrivateKey,
    issuer: x509.Name,
    now: datetime,
    until: datetime,
    signer: EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    """Begin a certificate with the identifiers of both keys, which RFC 5280 requires and clients check from Python 3.13 on."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _secret(
    namespace: str, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey, authority: x509.Certificate
) -> dict[str, Any]:
    data = {
        "tls.crt": certificate.public_bytes(Encoding.PEM),
        "tls.key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        "ca.crt": authority.public_bytes(Encoding.PEM),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "kubernetes.io/tls",
        "data": {file: base64.b64encode(content).decode() for file, content in data.items()},
    }
