"""The flat settings of TLS and load balancers are converted or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kourou.errors import ConfigError
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.tls import ClientAuth, TlsMode
from kourou.remoting.transport_config import TransportConfig
from kourou.settings import load, wire_keys
from tests.remoting.certificates import Authority

ROCKETMQ = """
tls.server.mode=enforcing
tls.server.certPath={cert}
tls.server.keyPath={key}
tls.server.need.client.auth=require
tls.server.authClient=true
tls.server.trustCertPath={root}
tls.enable=true
tls.client.authServer=false
tls.protocols=TLSv1.2, TLSv1.3
tls.ciphers=ECDHE-RSA-AES128-GCM-SHA256
"""


def test_rocketmq_s_keys_are_read(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server", "127.0.0.1")
    text = ROCKETMQ.format(cert=files.cert, key=files.key, root=files.root)
    config = load(TransportConfig, text=text, environ={}, prefix="KOUROU_", flags={})

    server = config.tls_server()
    assert server is not None
    assert (server.cert_path, server.key_path) == (files.cert, files.key)
    assert (server.mode, server.client_auth) == (TlsMode.ENFORCING, ClientAuth.REQUIRE)
    assert server.protocols == ("TLSv1.2", "TLSv1.3")
    client = config.tls_client()
    assert client is not None
    assert not client.is_server_verified
    assert client.ciphers == ("ECDHE-RSA-AES128-GCM-SHA256",)
    admission = config.admission(ConnectionLimits())
    assert admission is not None
    assert not admission.accepts_plain


def test_tables_of_toml_are_read_as_dotted_keys(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('[tls]\nenable = true\nclient.authServer = false\ntls_protocols = "TLSv1.3"\n')
    with pytest.raises(ConfigError, match=r"unknown setting tls\.tls_protocols"):
        load(TransportConfig, path=path, environ={}, prefix="KOUROU_", flags={})
    path.write_text('tls_protocols = "TLSv1.3"\n[tls]\nenable = true\nclient.authServer = false\n')
    config = load(TransportConfig, path=path, environ={}, prefix="KOUROU_", flags={})
    client = config.tls_client()
    assert client is not None
    assert (client.is_server_verified, client.protocols) == (False, ("TLSv1.3",))


def test_without_certificate_and_proxies_the_transport_is_plain() -> None:
    admission = TransportConfig().admission(ConnectionLimits())
    assert (admission.tls, admission.accepts_plain, admission.proxies) == (None, True, None)
    assert TransportConfig().tls_client() is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, True),
        ({"tls_test_mode_enable": False}, False),
        ({"tls_server_mode": TlsMode.DISABLED}, False),
        ({"tls_server_cert_path": Path("a"), "tls_server_key_path": Path("b")}, False),
    ],
)
def test_a_server_generates_a_certificate_only_if_none_is_configured(
    given: dict[str, Any], *, expected: bool
) -> None:
    assert TransportConfig(**given).uses_self_signed == expected


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tls_server_cert_path": Path("a")}, "must be set together"),
        ({"tls_client_key_path": Path("a")}, "must be set together"),
        ({"tls_server_mode": TlsMode.ENFORCING}, "enforcing, which needs"),
        ({"tls_server_need_client_auth": ClientAuth.REQUIRE}, "proves nothing"),
        ({"tls_server_auth_client": True}, "needs tls_server_trust_cert_path"),
        ({"tls_enable": True, "tls_protocols": "SSLv3"}, "'SSLv3' is not one of"),
        ({"proxy_protocol_trusted": ("my balancer",)}, "'my balancer' does not appear to be"),
    ],
)
def test_contradicting_settings_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TransportConfig(**given)


def test_passwords_are_not_shown() -> None:
    secret = "locked-away"  # noqa: S105 - of no key
    config = TransportConfig(tls_server_key_password=secret, tls_client_key_password=secret)
    assert secret not in repr(config)


def test_listed_settings_omit_passwords() -> None:
    assert not [key for key in wire_keys(TransportConfig) if "assword" in key]
