"""Transport settings of a server, beside addresses: TLS in both directions and load balancers.

The fields are flat, under RocketMQ's keys, as in a config file. The methods convert them into the
objects that the rest of the code uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.remoting.admission import NO_CERTIFICATE, Admission
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.networks import Networks
from kourou.remoting.tls import (
    ClientAuth,
    TlsClientConfig,
    TlsContext,
    TlsMode,
    TlsServerConfig,
)


@documented
@dataclass(frozen=True, kw_only=True)
class TransportConfig:
    """Transport of a server's ports and of its own connections to other servers.

    Certificates and keys are PEM files. A renewed file is used from the next connection on, without
    a restart.

    Raises:
        ConfigError: a value is out of its range, or requires another one that is missing.
    """

    tls_server_mode: TlsMode = field(
        default=TlsMode.PERMISSIVE, metadata={"key": "tls.server.mode"}
    )
    """Connections that the port accepts: `permissive`: plain and, given a certificate, TLS;
    `enforcing`: TLS only; `disabled`: plain only."""
    tls_server_cert_path: Path | None = field(default=None, metadata={"key": "tls.server.certPath"})
    """The server's certificate and its intermediate certificates. Without one, see
    `tls_test_mode_enable`."""
    tls_server_key_path: Path | None = field(default=None, metadata={"key": "tls.server.keyPath"})
    """Its private key."""
    tls_server_key_password: str | None = field(
        default=None, repr=False, metadata={"key": "tls.server.keyPassword", "secret": True}
    )
    """The password of the key, if it has one."""
    tls_server_need_client_auth: ClientAuth = field(
        default=ClientAuth.NONE, metadata={"key": "tls.server.need.client.auth"}
    )
    """Whether clients are asked for a certificate. `none`: no; `optional`: a certificate that is
    presented must be valid; `require`: clients without one are refused."""
    tls_server_auth_client: bool = field(default=False, metadata={"key": "tls.server.authClient"})
    """Whether clients' certificates are verified. Must be true where they are asked for: an
    unverified certificate proves nothing."""
    tls_server_trust_cert_path: Path | None = field(
        default=None, metadata={"key": "tls.server.trustCertPath"}
    )
    """The root certificates against which clients' certificates are verified."""
    tls_test_mode_enable: bool = field(default=True, metadata={"key": "tls.test.mode.enable"})
    """Whether `kourou serve` generates a self-signed certificate if none is configured, in the
    store's directory `tls`. Clients can trust its `server.crt`; Java's clients accept any
    certificate by default. If false, or if none can be generated, the port accepts plain
    connections only."""

    tls_enable: bool = field(default=False, metadata={"key": "tls.enable"})
    """Whether a broker uses TLS to connect to name servers."""
    tls_client_auth_server: bool = field(default=True, metadata={"key": "tls.client.authServer"})
    """Whether their certificates are verified. False, Java's default, accepts any certificate."""
    tls_client_check_host: bool = field(default=True, metadata={"key": "tls.client.checkHost"})
    """Whether their certificates must name the address connected to; Java never checks."""
    tls_client_trust_cert_path: Path | None = field(
        default=None, metadata={"key": "tls.client.trustCertPath"}
    )
    """The root certificates against which theirs are verified; unset: the system's."""
    tls_client_cert_path: Path | None = field(default=None, metadata={"key": "tls.client.certPath"})
    """The certificate presented to them if they request one."""
    tls_client_key_path: Path | None = field(default=None, metadata={"key": "tls.client.keyPath"})
    """Its private key."""
    tls_client_key_password: str | None = field(
        default=None, repr=False, metadata={"key": "tls.client.keyPassword", "secret": True}
    )
    """The password of the key, if it has one."""

    tls_protocols: str = field(default="", metadata={"key": "tls.protocols"})
    """`TLSv1.2`, `TLSv1.3` or both, separated by a comma; empty: both."""
    tls_ciphers: str = field(default="", metadata={"key": "tls.ciphers"})
    """Cipher suites of TLS 1.2 by OpenSSL's names, separated by commas; empty: OpenSSL's choice."""

    proxy_protocol_trusted: tuple[str, ...] = ()
    """Addresses and networks (`10.0.0.0/24`) of load balancers, separated by `;`. A connection from
    one of them may begin with a PROXY header, version 1 or 2, and is then treated as coming from
    the address in it. Java trusts this header from any sender."""

    def __post_init__(self) -> None:
        if (self.tls_server_cert_path is None) != (self.tls_server_key_path is None):
            raise ConfigError("tls_server_cert_path and tls_server_key_path must be set together")
        if self.tls_server_mode is TlsMode.ENFORCING and self.tls_server_cert_path is None:
            raise ConfigError(
                "tls_server_mode is enforcing, which needs tls_server_cert_path and "
                "tls_server_key_path"
            )
        asked = self.tls_server_need_client_auth
        if asked is not ClientAuth.NONE and not self.tls_server_auth_client:
            raise ConfigError(
                f"tls_server_need_client_auth is {asked.value} and tls_server_auth_client false: "
                "an unverified certificate proves nothing; set tls_server_auth_client to true"
            )
        if self.tls_server_auth_client and self.tls_server_trust_cert_path is None:
            raise ConfigError("tls_server_auth_client needs tls_server_trust_cert_path")
        if (self.tls_client_cert_path is None) != (self.tls_client_key_path is None):
            raise ConfigError("tls_client_cert_path and tls_client_key_path must be set together")
        self.tls_server()  # both raise ConfigError for invalid settings
        self.tls_client()
        self._proxies()  # raises ConfigError for what is no address

    def _proxies(self) -> Networks | None:
        trusted = self.proxy_protocol_trusted
        return Networks("proxy_protocol_trusted", trusted) if trusted else None

    def tls_server(self) -> TlsServerConfig | None:
        """Return the TLS settings of the ports; None: no TLS, or no configured certificate."""
        cert_path, key_path = self.tls_server_cert_path, self.tls_server_key_path
        if self.tls_server_mode is TlsMode.DISABLED or cert_path is None or key_path is None:
            return None
        return TlsServerConfig(
            cert_path=cert_path,
            key_path=key_path,
            key_password=self.tls_server_key_password,
            mode=self.tls_server_mode,
            client_auth=self.tls_server_need_client_auth,
            trust_cert_path=self.tls_server_trust_cert_path,
            protocols=_words(self.tls_protocols),
            ciphers=_words(self.tls_ciphers),
        )

    def tls_client(self) -> TlsClientConfig | None:
        """Return the TLS settings for connections to other servers; None: no TLS."""
        if not self.tls_enable:
            return None
        return TlsClientConfig(
            trust_cert_path=self.tls_client_trust_cert_path,
            is_server_verified=self.tls_client_auth_server,
            is_host_checked=self.tls_client_check_host,
            cert_path=self.tls_client_cert_path,
            key_path=self.tls_client_key_path,
            key_password=self.tls_client_key_password,
            protocols=_words(self.tls_protocols),
            ciphers=_words(self.tls_ciphers),
        )

    @property
    def uses_self_signed(self) -> bool:
        """Whether the ports should use a certificate that the server generates itself."""
        is_without = self.tls_server_cert_path is None
        is_on = self.tls_server_mode is not TlsMode.DISABLED
        return is_without and is_on and self.tls_test_mode_enable

    def admission(self, limits: ConnectionLimits, *, alpn: Sequence[str] = ()) -> Admission:
        """Return the settings for connections before their first frame.

        Args:
            limits: timeouts, and the numbers of connections.
            alpn: protocols that TLS offers, for clients that demand one.

        Raises:
            ConfigError: a certificate or key cannot be used.
        """
        tls = self.tls_server()
        is_off = self.tls_server_mode is TlsMode.DISABLED
        return Admission(
            tls=None if tls is None else TlsContext.of_server(tls, alpn),
            no_tls_reason="TLS is off here (tls.server.mode)" if is_off else NO_CERTIFICATE,
            accepts_plain=tls is None or tls.mode is not TlsMode.ENFORCING,
            proxies=self._proxies(),
            first_bytes_timeout_s=limits.idle_timeout_ms / 1000,
            handshake_timeout_s=limits.handshake_timeout_ms / 1000,
            handshakes_max=limits.handshakes_max,
            connecting_max=limits.connections_max,
        )


def _words(text: str) -> tuple[str, ...]:
    """Return the words of a comma-separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
