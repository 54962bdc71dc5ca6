"""Make the keys and certificates of a cluster for one session: a certificate authority, and the certificates that it signs.

PEM files, valid for a day, are written into an empty folder. No key is in the repository, and none outlives the folder. Source:
Kubernetes, "PKI certificates and requirements": a client's common name is its user, its organisation its group.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    certificate: Path
    key: Path


class Authority:
    """Run a certificate authority; its clients and servers trust `certificate`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700)
        self._name = _name("lading-sim-ca", "")
        self._key = ec.generate_private_key(ec.SECP256R1())
        unlimited = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._builder(self._name, self._key).add_extension(unlimited, critical=True)
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(_pem(certificate.add_extension(_SIGNS, critical=True).sign(self._key, hashes.SHA256())))

    def sign(self, name: str, user: str, *, group: str = "", addresses: Sequence[str] = ()) -> KeyPair:
        """Return a pair for a client (`user`, `group`) and, with addresses, for a server: host names and IP addresses."""
        pair = KeyPair(certificate=self._folder / f"{name}.crt", key=self._folder / f"{name}.key")
        key = write_key(pair.key)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = self._builder(_name(user, group), key).add_extension(usage, critical=False)
        if addresses:
            builder = builder.add_extension(x509.SubjectAlternativeName([_address(a) for a in addresses]), critical=False)
        pair.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        return pair

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _HOUR)  # in case a clock was set back
            .not_valid_after(now + _DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a new private key, and its PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,  # "EC PRIVATE KEY": kube-apiserver also reads a public key from it
            serialization.NoEncryption(),
        )
    )
    return key


def _name(user: str, group: str) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _address(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
