"""TLS of servers and clients: what they are told, and contexts that follow their files.

Certificates are renewed while a server runs: whoever needs a context asks for the current one, and
it is made anew when a file behind it has changed. Connections that are open keep what they began
with. Java reloads only when certificate and key have both changed; here each change is tried, and
what does not fit together (a new certificate whose key is not written yet) leaves the old context
in use until the next change.

Source: TlsHelper, TlsSystemConfig, FileWatchService.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
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
"""The versions that may be asked for. Older ones are broken, and are not offered."""


class TlsMode(Enum):
    """What a server's port takes; RocketMQ's tls.server.mode."""

    DISABLED = "disabled"
    """Plain connections only."""
    PERMISSIVE = "permissive"
    """Both, told apart by their first byte."""
    ENFORCING = "enforcing"
    """TLS only."""


class ClientAuth(Enum):
    """Whether a server asks clients for a certificate; RocketMQ's tls.server.need.client.auth."""

    NONE = "none"
    OPTIONAL = "optional"
    """One that is shown must be good."""
    REQUIRE = "require"
    """Who shows none is refused."""


@documented
@dataclass(frozen=True, kw_only=True)
class TlsServerConfig:
    """How a server speaks TLS.

    Raises:
        ConfigError: clients are to show certificates, and nothing says which are good; or a version
            is not one of `VERSIONS`. Whether the files are good is seen when the server starts.
    """

    cert_path: Path
    """The server's certificate and those that lead to a root, X.509 in PEM."""
    key_path: Path
    """Its private key in PEM."""
    key_password: str | None = field(default=None, repr=False)
    """The password of the key, where it has one."""
    mode: TlsMode = TlsMode.PERMISSIVE
    """What else the port takes."""
    client_auth: ClientAuth = ClientAuth.NONE
    """Whether clients must show a certificate."""
    trust_cert_path: Path | None = None
    """Certificates in PEM that clients' certificates must lead to."""
    protocols: tuple[str, ...] = ()
    """`TLSv1.2`, `TLSv1.3` or both; none given: both."""
    ciphers: tuple[str, ...] = ()
    """Cipher suites of TLS 1.2 by OpenSSL's names; none given: OpenSSL's choice."""

    def __post_init__(self) -> None:
        _check_protocols(self.protocols)
        if self.client_auth is not ClientAuth.NONE and self.trust_cert_path is None:
            raise ConfigError(
                f"client_auth is {self.client_auth.value} without trust_cert_path: a certificate "
                "that anybody can have made proves nothing"
            )


@documented
@dataclass(frozen=True, kw_only=True)
class TlsClientConfig:
    """How a client speaks TLS.

    A server is believed only if its certificate leads to a trusted root and names the address we
    asked for. Java's client believes any server by default.

    Raises:
        ConfigError: a certificate without its key or a key without its certificate; or a version
            is not one of `VERSIONS`. Whether the files are good is seen when they are first used.
    """

    trust_cert_path: Path | None = None
    """Certificates in PEM that servers' certificates must lead to; None: those of the system."""
    is_server_verified: bool = True
    """False believes any server: for tests only, since whoever is in between can read and write."""
    is_host_checked: bool = True
    """False believes a certificate whatever hosts it names, where brokers share one."""
    cert_path: Path | None = None
    """The client's own certificate, X.509 in PEM, for servers that ask for one."""
    key_path: Path | None = None
    """Its private key in PEM."""
    key_password: str | None = field(default=None, repr=False)
    """The password of the key, where it has one."""
    protocols: tuple[str, ...] = ()
    """`TLSv1.2`, `TLSv1.3` or both; none given: both."""
    ciphers: tuple[str, ...] = ()
    """Cipher suites of TLS 1.2 by OpenSSL's names; none given: OpenSSL's choice."""

    def __post_init__(self) -> None:
        _check_protocols(self.protocols)
        if (self.cert_path is None) != (self.key_path is None):
            raise ConfigError("cert_path and key_path belong together: one of them is missing")


class TlsContext:
    """A context that is made anew when the files behind it change.

    Raises:
        ConfigError: a file cannot be read, or is not what it should be.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], *paths: Path | None) -> None:
        self._make = make
        self._paths = [path for path in paths if path is not None]
        self._seen = self._stamps()  # before they are read: what changes meanwhile is seen next
        self._context = make()

    @classmethod
    def of_server(cls, config: TlsServerConfig) -> TlsContext:
        """Return the context of a server."""
        paths = (config.cert_path, config.key_path, config.trust_cert_path)
        return cls(lambda: _server_context(config), *paths)

    @classmethod
    def of_client(cls, config: TlsClientConfig) -> TlsContext:
        """Return the context of a client."""
        paths = (config.cert_path, config.key_path, config.trust_cert_path)
        return cls(lambda: _client_context(config), *paths)

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        It looks at the files each time: three calls of some microseconds, next to a handshake of
        a millisecond. Files that cannot be used leave the last good context in use.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return self._context
        self._seen = stamps  # a bad set of files is tried and told of once
        names = ";".join(map(str, self._paths))
        try:
            self._context = self._make()
        except ConfigError as error:
            log.warning("certificate.reload_failed files=%s reason=%r", names, str(error))
        else:
            log.info("certificate.reloaded files=%s", names)
        return self._context

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """Return what changes with each file's content; None for one that is not there."""
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()  # follows links: secrets are often renewed by moving one
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _server_context(config: TlsServerConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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
            raise ConfigError(f"ciphers {', '.join(ciphers)}: OpenSSL knows none of them") from None


def _load_chain(context: ssl.SSLContext, cert: Path, key: Path, password: str | None) -> None:
    try:
        # Without a password OpenSSL would ask the terminal for it.
        context.load_cert_chain(cert, key, password or "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"certificate {cert} with key {key}: {_reason(error)}") from error


def _load_trust(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"trusted certificates {path}: {_reason(error)}") from error


def _reason(error: OSError | ValueError) -> str:
    """Return OpenSSL's or the operating system's words."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not in PEM, or not readable with this password").lower()
    return getattr(error, "strerror", None) or str(error)


def _check_protocols(protocols: tuple[str, ...]) -> None:
    for name in protocols:
        if name not in VERSIONS:
            raise ConfigError(f"protocol {name!r} is not one of {', '.join(VERSIONS)}")
