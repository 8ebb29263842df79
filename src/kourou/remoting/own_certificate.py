"""A self-signed certificate for a server that was given none, as RocketMQ's servers make one.

It hides what is sent from those who only listen in. A client knows by it whom it speaks to only if
it trusts the file `server.crt`, which is there to be copied to clients.

    <directory>/server.pem   the private key and the certificate; mode 0600
    <directory>/server.crt   the certificate alone

The key is made by the package `cryptography`, or else by the program `openssl`. Both files are
replaced as a whole, so that two processes that start at once leave one pair that belongs together.

Source: TlsHelper.buildSslContext (tls.test.mode.enable), apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, cast

from kourou.errors import ConfigError

log = logging.getLogger(__name__)

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""Hosts that every such certificate names."""

VALID_DAYS: Final = 825
"""The longest time that strict clients accept."""
RENEW_DAYS: Final = 60
"""A certificate that expires within so many days is replaced."""

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_NONE_YET: Final = "there is none yet"
_DAY_MS: Final = 24 * 3600 * 1000
_OPENSSL_TIMEOUT_S: Final = 30
_HANDSHAKE_ROUNDS: Final = 4
_CERTIFICATE_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"

_OPENSSL_CONFIG: Final = """\
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = kourou
[extensions]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
subjectAltName = {names}
"""


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """Where the files of a certificate are.

    Attributes:
        pem: key and certificate, for the server alone.
        certificate: the certificate, for clients to trust.
    """

    pem: Path
    certificate: Path


Maker = Callable[[Sequence[str], int], bytes | None]
"""Makes a key and a certificate for hosts, valid from about `now_ms` on; returns both in PEM, or
None where what makes them is not installed."""


def make_by_package(hosts: Sequence[str], now_ms: int) -> bytes | None:
    """Make a certificate by the package `cryptography`; see `Maker`."""
    try:
        # Loaded by the first start of a server only: it takes a tenth of a second.
        from cryptography import x509  # noqa: PLC0415
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415
    except ImportError:
        return None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kourou")])
    names: list[x509.GeneralName] = [
        x509.DNSName(host) if ip is None else x509.IPAddress(ip)
        for host, ip in ((host, _ip(host)) for host in hosts)
    ]
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=False, crl_sign=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clients whose clocks are behind
        .not_valid_after(now + timedelta(days=VALID_DAYS - 1))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return private + certificate.public_bytes(pem)


def make_by_program(hosts: Sequence[str], _now_ms: int) -> bytes | None:
    """Make a certificate by the program `openssl`, from its own clock on; see `Maker`.

    Raises:
        ConfigError: the program failed.
    """
    names = ", ".join(f"{'DNS' if _ip(host) is None else 'IP'}:{host}" for host in hosts)
    with tempfile.TemporaryDirectory(prefix="kourou-tls-") as made_in:  # mode 0700
        config, key, certificate = (Path(made_in, name) for name in ("conf", "key", "crt"))
        config.write_text(_OPENSSL_CONFIG.format(names=names))
        words: list[str | Path] = [
            "openssl",
            "req",
            "-x509",
            "-config",
            config,
            "-newkey",
            "ec",
            "-pkeyopt",
        ]
        words += ["ec_paramgen_curve:prime256v1", "-nodes", "-sha256", "-days", str(VALID_DAYS)]
        words += ["-keyout", key, "-out", certificate]
        try:
            done = subprocess.run(  # noqa: S603  # hosts are checked, and in a file
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_OPENSSL_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError:
            return None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"the program openssl: {error}") from error
        if done.returncode != 0:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise ConfigError(f"the program openssl ended with {done.returncode}: {last}")
        return key.read_bytes() + certificate.read_bytes()


MAKERS: Final[tuple[Maker, ...]] = (make_by_package, make_by_program)


def ensure_certificate(
    directory: Path, hosts: Sequence[str], now_ms: int, makers: Sequence[Maker] = MAKERS
) -> OwnCertificate:
    """Return the certificate in `directory`; make it where it is missing or no longer good.

    It is replaced when its files are damaged, when it names other hosts than `LOCAL_HOSTS` and
    `hosts`, and `RENEW_DAYS` before it expires.

    Raises:
        ConfigError: a host is none that a certificate can name, or nothing is installed that makes
            certificates.
        OSError: the files cannot be read or written.
    """
    wanted = tuple(dict.fromkeys((*LOCAL_HOSTS, *map(_checked_host, hosts))))
    own = OwnCertificate(directory / "server.pem", directory / "server.crt")
    fault = _fault(own.pem, wanted, now_ms)
    if fault is not None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = next(filter(None, (make(wanted, now_ms) for make in makers)), None)
        if made is None:
            raise ConfigError(
                "neither the package cryptography nor the program openssl is installed: "
                "pip install 'kourou[server]'"
            )
        _replace(own.pem, made, mode=0o600)
        # Clients that trust the one before refuse the new one: an operator must see that.
        level = logging.INFO if fault is _NONE_YET else logging.WARNING
        log.log(
            level, "certificate.made file=%s hosts=%s reason=%r trust=%s",
            own.pem, ";".join(wanted), fault, own.certificate,
        )  # fmt: skip
    _publish(own)
    return own


def _fault(pem: Path, hosts: Sequence[str], now_ms: int) -> str | None:
    """Return why the certificate cannot be used any longer; None if it can."""
    if not pem.exists():
        return _NONE_YET
    try:
        named, expires_at_ms = _shown(pem)
    except (OSError, ValueError) as error:  # of OpenSSL: no PEM, not a pair, expired
        return f"it cannot be used: {getattr(error, 'reason', None) or error}"
    if named != {_normal(host) for host in hosts}:
        return "it names other hosts"
    if expires_at_ms - now_ms < RENEW_DAYS * _DAY_MS:
        return "it expires soon"
    return None


def _shown(pem: Path) -> tuple[set[str], int]:
    """Return the hosts that the certificate names, and when it expires, in ms.

    A handshake in memory tells it, without a parser of certificates, and proves the pair.

    Raises:
        OSError, ValueError: it cannot be read, or no client that trusts it would accept it.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem, password="")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(pem)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (asking, answering) * _HANDSHAKE_ROUNDS:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    shown = asking.getpeercert()
    assert shown is not None, "the client verified it"
    expires_at_s = ssl.cert_time_to_seconds(str(shown["notAfter"]))
    names = cast(Iterable[tuple[str, str]], shown.get("subjectAltName", ()))
    return {_normal(host.strip()) for _, host in names}, expires_at_s * 1000


def _normal(host: str) -> str:
    """Return the host in the one form that OpenSSL's and ours are compared in."""
    ip = _ip(host)
    return host.lower() if ip is None else str(ip)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _checked_host(host: str) -> str:
    if _ip(host) is None and not _HOST.fullmatch(host):
        raise ConfigError(f"host {host!r}: no certificate can name it")
    return host


def _publish(own: OwnCertificate) -> None:
    """Keep the key to its owner, and the file for clients equal to the certificate."""
    if own.pem.stat().st_mode & 0o077:
        log.warning("certificate.key_was_readable file=%s", own.pem)
        own.pem.chmod(0o600)
    content = own.pem.read_bytes()
    certificate = content[content.index(_CERTIFICATE_BEGIN) :]
    if not own.certificate.exists() or own.certificate.read_bytes() != certificate:
        _replace(own.certificate, certificate, mode=0o644)


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    """Replace a file as a whole; nobody sees half of it, and it is on disk when this returns."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
