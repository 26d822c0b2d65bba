"""Certificates, client keys and enrolment: who may talk to whom, decided before any training.

    enrolment directory, on the server      enrolment.json, server.pem, server.key, ca.pem, ca.key
    a client's key file, on the client      its id, its private keys, the server's ca.pem
    a client's public file, for the server  its id and its public keys
    in both, for a silo                     how many people it has at most, which is public

The server's certificate is signed by an authority of its own (`ca`), which a client is given with
its key file, so that no public authority is needed or believed.  A client signs every request with
its key (P-384, as Flower's node authentication has it), and what other clients are told of it in a
secure sum with another one (Ed25519), which they know from the roster.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NotRequired, Self, TypedDict

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.corpus.enrolment import Enrolled, Enrolment, check_id, check_silo
from tacit.privacy import documents, durable

DAYS = 365
_CLIENT_FORMAT, _PUBLIC_FORMAT = "tacit client key 1", "tacit client 1"
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class ServerFiles:
    """The server's certificate, its key, and the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path

    @classmethod
    def inside(cls, folder: Path) -> Self:
        """Those of an enrolment directory; `ValueError` if one is missing."""
        files = cls(folder / "server.pem", folder / "server.key", folder / "ca.pem")
        for path in (files.certificate, files.key, files.authority):
            if not path.is_file():
                raise ValueError(
                    f"there is no {path}: make one with tacit federate keys server, or train on"
                    " this machine alone with --insecure"
                )
        return files

    def refuse_unusable(self) -> None:
        """Raise if certificate and key do not fit, or are not valid now: nobody would connect."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, ValueError):
            raise ValueError(
                f"{self.certificate} and {self.key} are no certificate and its key; make them anew"
                " with tacit federate keys renew"
            ) from None
        certificate = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        ends = certificate.not_valid_after_utc
        if not certificate.not_valid_before_utc <= datetime.now(UTC) < ends:
            raise ValueError(
                f"the certificate {self.certificate} is valid until {ends:%Y-%m-%d} and not now;"
                " make another with tacit federate keys renew"
            )


def make_server(
    folder: Path,
    hosts: list[str],
    *,
    people: str | None = None,
    about_people: bool = True,
    days: float = DAYS,
) -> Enrolment:
    """A new enrolment directory: nobody is enrolled, and the certificate is for these hosts.

    `people` is the id of a group that is known already, whose ledger the trainings are charged to.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} has files in it: name a new folder")
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tacit federation")])
    begins = datetime.now(UTC) - timedelta(minutes=5)  # clocks differ
    authority = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=20 * DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    server = _Certified.by(authority, key, hosts, days)  # refused before anything is written
    durable.make_folder(folder)
    durable.write_whole(folder / "ca.key", _private_pem(key))
    durable.write_whole(folder / "ca.pem", authority.public_bytes(_PEM), mode=durable.SHARED)
    server.save(folder)
    return Enrolment.create(folder, people or secrets.token_hex(8), about_people=about_people)


def renew(folder: Path, hosts: list[str], *, days: float = DAYS) -> None:
    """Make the server's certificate, or make it anew, signed by the authority in the folder."""
    try:
        authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        signer = _private_key((folder / "ca.key").read_bytes(), folder / "ca.key")
    except FileNotFoundError as missing:
        raise ValueError(
            f"there is no {missing.filename}: make one with tacit federate keys server"
        ) from None
    _Certified.by(authority, signer, hosts, days).save(folder)


@dataclass(frozen=True)
class _Certified:
    """The server's key, and the certificate that it is the one that clients call."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def by(
        cls,
        authority: x509.Certificate,
        signer: ec.EllipticCurvePrivateKey,
        hosts: list[str],
        days: float,
    ) -> _Certified:
        """Signed by an authority, for these hosts and so many days."""
        if not hosts:
            raise ValueError("a certificate is for a host at least: name those that clients call")
        if not abs(days) <= 20 * DAYS:
            raise ValueError(
                f"days must be at most {20 * DAYS:g}, as of the authority, got {days:g}"
            )
        key = ec.generate_private_key(ec.SECP384R1())
        now, after = datetime.now(UTC), timedelta(days=days)
        names: list[x509.GeneralName] = [_name(host) for host in hosts]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + after) - timedelta(minutes=5))
            .not_valid_after(now + after)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
            .sign(signer, hashes.SHA256())
        )
        return cls(key, certificate)

    def save(self, folder: Path) -> None:
        """Where the server looks for it."""
        public = self.certificate.public_bytes(_PEM)
        durable.write_whole(folder / "server.key", _private_pem(self.key))
        durable.write_whole(folder / "server.pem", public, mode=durable.SHARED)


# Clients.


class _ClientFile(TypedDict):
    format: str
    id: str
    private_key: str
    signing_key: str  # for Ed25519, as hexadecimal digits
    authority: str  # as PEM
    silo: NotRequired[int]


class _PublicFile(TypedDict):
    format: str
    id: str
    key: str
    signing_key: str  # Ed25519, as hexadecimal digits
    silo: NotRequired[int]


@dataclass(frozen=True)
class ClientKey:
    """Who a client is, how it proves it, and whom it believes.

    `silo` is how many people a silo has at most; None stands for one person.
    """

    id: str
    private: ec.EllipticCurvePrivateKey
    signing: Ed25519PrivateKey
    authority: str
    silo: int | None = None

    @classmethod
    def generate(cls, authority: str, user_id: str | None = None, silo: int | None = None) -> Self:
        """A new key.  An id, once chosen, decides whose turn it is when: it says nothing else."""
        if silo is not None:
            check_silo(silo)
        x509.load_pem_x509_certificate(authority.encode())
        name = check_id(user_id or secrets.token_hex(16))
        private = ec.generate_private_key(ec.SECP384R1())
        return cls(name, private, Ed25519PrivateKey.generate(), authority, silo)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The key in a file; `ValueError` for anything else."""
        try:
            content = documents.read_json(path, _ClientFile)
        except FileNotFoundError:
            raise ValueError(
                f"there is no key {path}: make one with tacit federate keys client"
            ) from None
        if content["format"] != _CLIENT_FORMAT:
            raise ValueError(f"{path} is no client's key, but {content['format']!r}")
        private = _private_key(content["private_key"].encode(), path)
        try:
            signing = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(content["signing_key"]))
        except ValueError:
            raise ValueError(f"{path} must hold a signing key of 64 hexadecimal digits") from None
        silo = check_silo(content["silo"]) if "silo" in content else None
        return cls(check_id(content["id"]), private, signing, content["authority"], silo)

    def save(self, path: Path) -> Path:
        """Write the key, for its owner alone, and beside it the file that is enrolled."""
        content = _ClientFile(
            format=_CLIENT_FORMAT,
            id=self.id,
            private_key=_private_pem(self.private).decode(),
            signing_key=self.signing.private_bytes_raw().hex(),
            authority=self.authority,
        )
        if self.silo is not None:
            content["silo"] = self.silo
        durable.write_whole(path, _json(content), new=True)
        public = path.with_name(f"{path.name}.pub")
        data = _PublicFile(format=_PUBLIC_FORMAT, **self.enrolled())
        durable.write_whole(public, _json(data), mode=durable.SHARED, new=True)
        return public

    def public_pem(self) -> str:
        """The public key, in the very form in which it is sent."""
        public = self.private.public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return public.public_bytes(_PEM, form).decode()

    def enrolled(self) -> Enrolled:
        """What the server has to know."""
        signing_key = self.signing.public_key().public_bytes_raw().hex()
        told = Enrolled(id=self.id, key=self.public_pem(), signing_key=signing_key)
        if self.silo is not None:
            told["silo"] = self.silo
        return told


def read_public(path: Path) -> Enrolled:
    """A client's public file; `ValueError` unless its keys are on P-384 and for Ed25519."""
    try:
        content = documents.read_json(path, _PublicFile)
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    if content["format"] != _PUBLIC_FORMAT:
        raise ValueError(f"{path} is not what a client hands to the server, but its key or another")
    try:
        key = serialization.load_pem_public_key(content["key"].encode())
    except (ValueError, UnsupportedAlgorithm) as mistake:
        raise ValueError(f"{path} holds no public key: {mistake}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError(f"{path} must hold a public key on the curve P-384")
    told = Enrolled(
        id=check_id(content["id"]),
        key=content["key"],
        signing_key=check_signing_key(content["signing_key"]).hex(),
    )
    if "silo" in content:
        told["silo"] = check_silo(content["silo"])
    return told


def check_signing_key(text: str) -> bytes:
    """The bytes of a public key for Ed25519 as hexadecimal digits, if it is one."""
    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text)).public_bytes_raw()
    except ValueError:
        raise ValueError(
            f"a signing key must be 64 hexadecimal digits for Ed25519, got {text[:80]!r}"
        ) from None


def _private_key(pem: bytes, where: Path) -> ec.EllipticCurvePrivateKey:
    """The key on P-384 that a file holds, as `_private_pem` wrote it."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(f"{where} holds no private key, or one with a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError(f"{where} must hold a private key on the curve P-384")
    return key


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(_PEM, form, plain)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not host.isascii():
            raise ValueError(f"a host's name must be ASCII (xn--...), got {host!r}") from None
        return x509.DNSName(host)


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in names})


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()
