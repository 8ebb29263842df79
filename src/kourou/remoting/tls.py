"""TLS settings of servers and clients, and contexts that reload when their files change.

Certificates may be renewed while a server runs. `TlsContext.current` is called for each new
connection and rebuilds the context when one of its files has changed. Open connections keep the
context that they started with. Java reloads only when certificate and key have both changed. Here
every change triggers a reload; if it fails (a new certificate whose key is not written yet), the
old context stays in use until the next change.

Source: TlsHelper, TlsSystemConfig, FileWatchService.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError

log = logging.getLogger(__name__)

VERSIONS: Final = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
"""The versions that can be configured. Older versions are insecure and not offered."""


class TlsMode(Enum):
    """Kinds of connections that a server's port accepts; RocketMQ's tls.server.mode."""

    DISABLED = "disabled"
    """Plain connections only."""
    PERMISSIVE = "permissive"
    """Both, distinguished by their first byte."""
    ENFORCING = "enforcing"
    """TLS only."""


class ClientAuth(Enum):
    """Certificates that a server requests of clients; RocketMQ's tls.server.need.client.auth."""

    NONE = "none"
    OPTIONAL = "optional"
    """A certificate is requested; if the client presents one, it must be valid."""
    REQUIRE = "require"
    """A client without a certificate is refused."""


@documented
@dataclass(frozen=True, kw_only=True)
class TlsServerConfig:
    """TLS settings of a server.

    The files are first read when the server starts.

    Raises:
        ConfigError: client certificates are requested without `trust_cert_path`, or a version is
            not one of `VERSIONS`.
    """

    cert_path: Path
    """The server's certificate and its intermediate certificates, X.509 in PEM."""
    key_path: Path
    """Its private key in PEM."""
    key_password: str | None = field(default=None, repr=False)
    """The password of the key, if it has one."""
    mode: TlsMode = TlsMode.PERMISSIVE
    """Whether the port accepts plain connections too."""
    client_auth: ClientAuth = ClientAuth.NONE
    """Whether clients must present a certificate."""
    trust_cert_path: Path | None = None
    """Root certificates in PEM against which clients' certificates are verified."""
    protocols: tuple[str, ...] = ()
    """`TLSv1.2`, `TLSv1.3` or both; empty: both."""
    ciphers: tuple[str, ...] = ()
    """Cipher suites of TLS 1.2 by OpenSSL's names; empty: OpenSSL's choice."""

    def __post_init__(self) -> None:
        _check_protocols(self.protocols)
        if self.client_auth is not ClientAuth.NONE and self.trust_cert_path is None:
            raise ConfigError(
                f"client_auth is {self.client_auth.value} without trust_cert_path: certificates "
                "cannot be verified without trusted roots; set trust_cert_path"
            )


@documented
@dataclass(frozen=True, kw_only=True)
class TlsClientConfig:
    """TLS settings of a client.

    By default a server's certificate must be signed by a trusted root and must name the address
    connected to. Java's client accepts any certificate by default. The files are first read when
    the context is created.

    Raises:
        ConfigError: a certificate without its key, a key without its certificate, or a version
            that is not one of `VERSIONS`.
    """

    trust_cert_path: Path | None = None
    """Root certificates in PEM against which servers' certificates are verified; None: those of
    the system."""
    is_server_verified: bool = True
    """False accepts any certificate. For tests only: a man in the middle can read and change all
    traffic."""
    is_host_checked: bool = True
    """False accepts a certificate that names other hosts, for brokers that share one."""
    cert_path: Path | None = None
    """The client's own certificate, X.509 in PEM, for servers that request one."""
    key_path: Path | None = None
    """Its private key in PEM."""
    key_password: str | None = field(default=None, repr=False)
    """The password of the key, if it has one."""
    protocols: tuple[str, ...] = ()
    """`TLSv1.2`, `TLSv1.3` or both; empty: both."""
    ciphers: tuple[str, ...] = ()
    """Cipher suites of TLS 1.2 by OpenSSL's names; empty: OpenSSL's choice."""

    def __post_init__(self) -> None:
        _check_protocols(self.protocols)
        if (self.cert_path is None) != (self.key_path is None):
            raise ConfigError("cert_path and key_path must be set together: one of them is missing")


class TlsContext:
    """An SSL context that is rebuilt when its files change.

    Raises:
        ConfigError: a file cannot be read or does not contain what it should.
    """

    def __init__(self, build: Callable[[], ssl.SSLContext], *paths: Path | None) -> None:
        self._build = build
        self._paths = [path for path in paths if path is not None]
        # Before reading, so that a concurrent change is noticed later.
        self._seen = self._file_stamps()
        self._context = build()

    @classmethod
    def of_server(cls, config: TlsServerConfig, alpn: Sequence[str] = ()) -> TlsContext:
        """Return the context of a server, which offers the protocols `alpn`."""
        paths = (config.cert_path, config.key_path, config.trust_cert_path)
        return cls(lambda: _server_context(config, alpn), *paths)

    @classmethod
    def of_client(cls, config: TlsClientConfig) -> TlsContext:
        """Return the context of a client."""
        paths = (config.cert_path, config.key_path, config.trust_cert_path)
        return cls(lambda: _client_context(config), *paths)

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        Each call stats the files: up to three system calls of some microseconds, little beside a
        handshake of a millisecond. If changed files cannot be used, the last good context stays in
        use.
        """
        stamps = self._file_stamps()
        if stamps == self._seen:
            return self._context
        self._seen = stamps  # unusable files are tried and logged once
        names = ";".join(map(str, self._paths))
        try:
            self._context = self._build()
        except ConfigError as error:
            log.warning("certificate.reload_failed files=%s reason=%r", names, str(error))
        else:
            log.info("certificate.reloaded files=%s", names)
        return self._context

    def _file_stamps(self) -> list[tuple[int, int, int] | None]:
        """Return inode, size and mtime in ns of each file; None for a missing file."""
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()  # follows links: secrets are often renewed by replacing a symlink
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _server_context(config: TlsServerConfig, alpn: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    _set_versions(context, config.protocols, config.ciphers)
    _load_chain(context, config.cert_path, config.key_path, config.key_password)
    if config.client_auth is not ClientAuth.NONE:
        assert config.trust_cert_path is not None, "checked when the config was made"
        _load_trust(context, config.trust_cert_path)
        is_required = config.client_auth is ClientAuth.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


def _client_context(config: TlsClientConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_versions(context, config.protocols, config.ciphers)
    context.check_hostname = config.is_server_verified and config.is_host_checked
    if not config.is_server_verified:
        context.verify_mode = ssl.CERT_NONE
    elif config.trust_cert_path is None:
        context.load_default_certs()
    else:
        _load_trust(context, config.trust_cert_path)
    if config.cert_path is not None and config.key_path is not None:
        _load_chain(context, config.cert_path, config.key_path, config.key_password)
    return context


def _set_versions(
    context: ssl.SSLContext, protocols: tuple[str, ...], ciphers: tuple[str, ...]
) -> None:
    versions = [VERSIONS[name] for name in protocols or VERSIONS]
    context.minimum_version = min(versions)
    context.maximum_version = max(versions)
    if ciphers:
        try:
            context.set_ciphers(":".join(ciphers))
        except ssl.SSLError:
            text = f"ciphers {', '.join(ciphers)}: OpenSSL supports none of them"
            raise ConfigError(text) from None


def _load_chain(context: ssl.SSLContext, cert: Path, key: Path, password: str | None) -> None:
    try:
        # With no password at all, OpenSSL would prompt for it on the terminal.
        context.load_cert_chain(cert, key, password or "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"certificate {cert} with key {key}: {_reason(error)}") from error


def _load_trust(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"trusted certificates {path}: {_reason(error)}") from error


def _reason(error: OSError | ValueError) -> str:
    """Return the error text of OpenSSL or the operating system."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not in PEM, or not readable with this password").lower()
    return getattr(error, "strerror", None) or str(error)


def _check_protocols(protocols: tuple[str, ...]) -> None:
    for name in protocols:
        if name not in VERSIONS:
            raise ConfigError(f"protocol {name!r} is not one of {', '.join(VERSIONS)}")
