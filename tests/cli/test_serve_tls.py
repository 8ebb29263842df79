"""Tests of TLS in `kourou serve`, with a self-signed or a configured certificate."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kourou.errors import ConnectFailedError, ConnectionLostError
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.tls import TlsClientConfig
from kourou.testing.process import Serving, run_command
from tests.remoting.certificates import Authority

CONFIG = """
tls.server.mode=enforcing
tls.server.certPath={cert}
tls.server.keyPath={key}
tls.enable=true
tls.client.trustCertPath={root}
"""


async def cluster_info(address: str, tls: TlsClientConfig | None) -> bytes:
    pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits(), tls=tls)
    try:
        asked = request(RequestCode.GET_BROKER_CLUSTER_INFO)
        return (await pool.request(address, asked, 5.0)).body
    finally:
        await pool.close()


def test_name_server_and_broker_use_tls_with_clients_and_each_other(tmp_path: Path) -> None:
    files = Authority(tmp_path / "pki").issue("server", "127.0.0.1")
    config = tmp_path / "broker.conf"
    config.write_text(CONFIG.format(cert=files.cert, key=files.key, root=files.root))
    trusting = TlsClientConfig(trust_cert_path=files.root)

    with Serving.start(tmp_path / "store", "--config", str(config)) as serving:
        info = asyncio.run(cluster_info(serving.namesrv, trusting))
        assert serving.broker.encode() in info  # the broker registered over TLS
        for address in (serving.namesrv, serving.broker):
            with pytest.raises(ConnectionLostError):
                asyncio.run(cluster_info(address, None))


def test_commands_work_with_tls_only_servers(tmp_path: Path) -> None:
    files = Authority(tmp_path / "pki").issue("server", "127.0.0.1")
    config = tmp_path / "broker.conf"
    config.write_text(CONFIG.format(cert=files.cert, key=files.key, root=files.root))
    environ = {"KOUROU_TLS_ENABLE": "true", "KOUROU_TLS_TRUST_CERT_PATH": str(files.root)}

    with Serving.start(tmp_path / "store", "--config", str(config)) as serving:
        where = ("--namesrv", serving.namesrv)
        for words in (
            ("send", "Orders", "hello", *where),
            ("receive", "Orders", "--from", "earliest", "--count", "1", *where),
            ("message", "print", "Orders", *where),
            ("topic", "list", *where),
            ("health", *where),
        ):
            done = run_command(*words, environ=environ)
            assert done.code == 0, (words, done.err)
        plain = run_command("topic", "list", *where)
        assert plain.code == 3


def test_tls_variables_without_enable_are_refused() -> None:
    done = run_command("topic", "list", environ={"KOUROU_TLS_TRUST_CERT_PATH": "/ca.pem"})
    assert done.code == 2
    assert "set KOUROU_TLS_ENABLE=true too" in done.err


def test_tls_only_name_server_with_a_plain_broker_is_refused(tmp_path: Path) -> None:
    files = Authority(tmp_path / "pki").issue("server", "127.0.0.1")
    config = tmp_path / "broker.conf"
    config.write_text(CONFIG.format(cert=files.cert, key=files.key, root=files.root))
    config.write_text(config.read_text().replace("tls.enable=true", "tls.enable=false"))

    done = run_command("serve", "--store", str(tmp_path / "store"), "--config", str(config))

    assert done.code == 2
    assert "set tls_enable to true" in done.err


def test_missing_certificate_file_is_named(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(
        f'tls.server.certPath = "{tmp_path}/no.crt"\ntls.server.keyPath = "{tmp_path}/no.key"\n'
    )
    done = run_command("serve", "--store", str(tmp_path / "store"), "--config", str(config))
    assert done.code == 2
    assert "no.crt" in done.err
    assert "Traceback" not in done.err


def test_serve_creates_a_self_signed_certificate_by_default(tmp_path: Path) -> None:
    with Serving.start(tmp_path, "--advertise", "localhost") as serving:
        certificate = Path(str(serving.ready["certificate"]))
        trusting = TlsClientConfig(trust_cert_path=certificate)
        advertised = f"localhost:{serving.broker.rpartition(':')[2]}"
        for address in (serving.namesrv, serving.broker, advertised):
            for tls in (trusting, None):
                assert asyncio.run(cluster_info_or_refusal(address, tls))
        environ = {"KOUROU_TLS_ENABLE": "true", "KOUROU_TLS_TRUST_CERT_PATH": str(certificate)}
        sent = run_command("send", "Orders", "hello", "-n", serving.namesrv, environ=environ)
        assert sent.code == 0, sent.err
        first = certificate.read_bytes()
        assert serving.stop().code == 0
    assert certificate == tmp_path / "tls" / "server.crt"
    assert run_command("store", "check", str(tmp_path)).code == 0

    with Serving.start(tmp_path) as serving:
        assert certificate.read_bytes() == first
    with Serving.start(tmp_path, "--advertise", "broker.example") as serving:
        assert certificate.read_bytes() != first


async def cluster_info_or_refusal(address: str, tls: TlsClientConfig | None) -> bool:
    """Return whether a server answers, even if a broker refuses the request for name servers."""
    pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits(), tls=tls)
    try:
        await pool.request(address, request(RequestCode.GET_BROKER_CLUSTER_INFO), 5.0)
    finally:
        await pool.close()
    return True


def test_no_tls_accepts_plain_connections_only(tmp_path: Path) -> None:
    with Serving.start(tmp_path, "--no-tls") as serving:
        assert serving.ready["certificate"] is None
        assert asyncio.run(cluster_info_or_refusal(serving.namesrv, None))
        unverified = TlsClientConfig(is_server_verified=False)
        with pytest.raises(ConnectFailedError):
            asyncio.run(cluster_info_or_refusal(serving.namesrv, unverified))
        reported = serving.stop().err
    assert "a TLS hello, but TLS is off here" in reported
    assert not (tmp_path / "tls").exists()


def test_serve_accepts_plain_connections_if_no_certificate_can_be_created(tmp_path: Path) -> None:
    (tmp_path / "cryptography.py").write_text("raise ImportError\n")
    environ = {"PYTHONPATH": str(tmp_path), "PATH": str(tmp_path)}
    with Serving.start(tmp_path / "store", environ=environ) as serving:
        assert serving.ready["certificate"] is None
        assert asyncio.run(cluster_info_or_refusal(serving.namesrv, None))
        reported = serving.stop().err
    assert "certificate.not_made" in reported
    assert "pip install 'kourou[server]'" in reported
