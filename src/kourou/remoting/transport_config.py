"""The settings of a server's ports beside their addresses: TLS, both ways, and load balancers.

They are flat, under RocketMQ's keys, as they stand in a config file; what the rest works with is
made of them here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.remoting.entrance import NO_CERTIFICATE, Entrance
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.proxy_protocol import TrustedProxies
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
    """How the ports of a server speak, and how it speaks to other servers.

    Certificates and keys are PEM files. A renewed one is used from the next connection on, without
    a restart.

    Raises:
        ConfigError: a value is out of its range, or needs another one that is missing.
    """

    tls_server_mode: TlsMode = field(
        default=TlsMode.PERMISSIVE, metadata={"key": "tls.server.mode"}
    )
    """What the port takes: `permissive` plain connections and, given a certificate, TLS;
    `enforcing` TLS only; `disabled` plain ones only."""
    tls_server_cert_path: Path | None = field(default=None, metadata={"key": "tls.server.certPath"})
    """The server's certificate and those between it and a root. Without one, see
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
    """Whether clients are asked for a certificate: `none`; `optional`: one that is shown must be
    good; `require`: who has none is refused."""
    tls_server_auth_client: bool = field(default=False, metadata={"key": "tls.server.authClient"})
    """Whether clients' certificates are verified. Must be true where they are asked for: one that
    anybody can have made proves nothing."""
    tls_server_trust_cert_path: Path | None = field(
        default=None, metadata={"key": "tls.server.trustCertPath"}
    )
    """The roots that clients' certificates must lead to."""
    tls_test_mode_enable: bool = field(default=True, metadata={"key": "tls.test.mode.enable"})
    """Whether `kourou serve`, where no certificate is given, makes one of its own and keeps it in
    the store's directory `tls`. Clients can trust its `server.crt`; Java's believe any by default.
    If not, or where none can be made, the port takes plain connections only."""

    tls_enable: bool = field(default=False, metadata={"key": "tls.enable"})
    """Whether a broker speaks TLS to name servers."""
    tls_client_auth_server: bool = field(default=True, metadata={"key": "tls.client.authServer"})
    """Whether their certificates are verified; false, Java's default, believes anybody."""
    tls_client_check_host: bool = field(default=True, metadata={"key": "tls.client.checkHost"})
    """Whether their certificates must name the address connected to; Java never looks."""
    tls_client_trust_cert_path: Path | None = field(
        default=None, metadata={"key": "tls.client.trustCertPath"}
    )
    """The roots that their certificates must lead to; none given: the system's."""
    tls_client_cert_path: Path | None = field(default=None, metadata={"key": "tls.client.certPath"})
    """The certificate shown to them where they ask for one."""
    tls_client_key_path: Path | None = field(default=None, metadata={"key": "tls.client.keyPath"})
    """Its private key."""
    tls_client_key_password: str | None = field(
        default=None, repr=False, metadata={"key": "tls.client.keyPassword", "secret": True}
    )
    """The password of the key, if it has one."""

    tls_protocols: str = field(default="", metadata={"key": "tls.protocols"})
    """`TLSv1.2`, `TLSv1.3` or both, with a comma; empty: both."""
    tls_ciphers: str = field(default="", metadata={"key": "tls.ciphers"})
    """Cipher suites of TLS 1.2 by OpenSSL's names, with commas; empty: OpenSSL's choice."""

    proxy_protocol_trusted: tuple[str, ...] = ()
    """Addresses and networks (`10.0.0.0/24`) of load balancers, separated by `;`. A connection from
    one of them may begin with a PROXY header, version 1 or 2, and then counts as coming from the
    address in it. Java believes this header whoever sends it, and so any address it names."""

    def __post_init__(self) -> None:
        if (self.tls_server_cert_path is None) != (self.tls_server_key_path is None):
            raise ConfigError("tls_server_cert_path and tls_server_key_path belong together")
        if self.tls_server_mode is TlsMode.ENFORCING and self.tls_server_cert_path is None:
            raise ConfigError(
                "tls_server_mode is enforcing, which needs tls_server_cert_path and "
                "tls_server_key_path"
            )
        asked = self.tls_server_need_client_auth
        if asked is not ClientAuth.NONE and not self.tls_server_auth_client:
            raise ConfigError(
                f"tls_server_need_client_auth is {asked.value} and tls_server_auth_client false: "
                "a certificate that nobody verifies proves nothing; set it true"
            )
        if self.tls_server_auth_client and self.tls_server_trust_cert_path is None:
            raise ConfigError("tls_server_auth_client needs tls_server_trust_cert_path")
        if (self.tls_client_cert_path is None) != (self.tls_client_key_path is None):
            raise ConfigError("tls_client_cert_path and tls_client_key_path belong together")
        self.tls_server()  # both refuse what they cannot be made of
        self.tls_client()
        if self.proxy_protocol_trusted:
            TrustedProxies(self.proxy_protocol_trusted)

    def tls_server(self) -> TlsServerConfig | None:
        """Return how the ports speak TLS; None: not at all."""
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
        """Return how to speak TLS to other servers; None: not at all."""
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
    def wants_own_certificate(self) -> bool:
        """Whether the ports are to speak TLS with a certificate that the server makes itself."""
        is_without = self.tls_server_cert_path is None
        is_on = self.tls_server_mode is not TlsMode.DISABLED
        return is_without and is_on and self.tls_test_mode_enable

    def entrance(self, limits: ConnectionLimits) -> Entrance:
        """Return what the ports look at before the first frame.

        Raises:
            ConfigError: a certificate or key cannot be used.
        """
        tls = self.tls_server()
        trusted = self.proxy_protocol_trusted
        is_off = self.tls_server_mode is TlsMode.DISABLED
        return Entrance(
            tls=None if tls is None else TlsContext.of_server(tls),
            no_tls_reason="TLS is off here (tls.server.mode)" if is_off else NO_CERTIFICATE,
            takes_plain=tls is None or tls.mode is not TlsMode.ENFORCING,
            proxies=TrustedProxies(trusted) if trusted else None,
            silence_max_s=limits.idle_timeout_ms / 1000,
            handshake_max_s=limits.handshake_timeout_ms / 1000,
            handshakes_max=limits.handshakes_max,
            arriving_max=limits.connections_max,
        )


def _words(text: str) -> tuple[str, ...]:
    """Return the words between the commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
