"""One port serves TLS and plain clients; both sides check certificates, also renewed ones."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from kourou.errors import ConfigError, ConnectFailedError, ConnectionLostError
from kourou.protocol.command import request
from kourou.protocol.frame import encode_frame
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address, format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.tls import ClientAuth, TlsClientConfig, TlsContext, TlsMode, TlsServerConfig
from kourou.remoting.transport_config import TransportConfig
from kourou.testing.raw_client import RawClient
from tests.remoting.certificates import Authority
from tests.remoting.tls_rig import (
    ECHO,
    HOST,
    LIMITS,
    PATIENCE_S,
    RUNNERS,
    Served,
    of_client,
    of_server,
    serve,
)

PASSWORD = "locked-away"  # noqa: S105 - of a key that lives as long as a test


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    return RUNNERS[request.param]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_permissive_port_serves_tls_and_plain_clients(run: Any, authority: Authority) -> None:
    files = authority.issue("server", HOST)

    async def test(served: Served) -> None:
        large = bytes(range(256)) * 20_000
        assert await served.ping(of_client(files)) == b"ping"
        assert await served.ping(of_client(files), large) == large
        assert await served.ping(None, large) == large

    run(serve(of_server(files), test))


def test_an_enforcing_port_closes_plain_clients(run: Any, authority: Authority) -> None:
    files = authority.issue("server", HOST)

    async def test(served: Served) -> None:
        assert await served.ping(of_client(files)) == b"ping"
        with pytest.raises(ConnectionLostError):
            await served.ping(None)

    run(serve(of_server(files, tls_server_mode=TlsMode.ENFORCING), test))


def test_a_port_without_a_certificate_closes_tls_clients(
    run: Any, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.issue("server", HOST)

    async def test(served: Served) -> None:
        assert await served.ping(None) == b"ping"
        with pytest.raises(ConnectFailedError):
            await served.ping(of_client(files))

    run(serve(TransportConfig(), test))
    assert "a TLS hello, but this server has no certificate (tls.server.certPath)" in caplog.text
    caplog.clear()
    run(serve(of_server(files, tls_server_mode=TlsMode.DISABLED), test))
    assert "a TLS hello, but TLS is off here (tls.server.mode)" in caplog.text
    caplog.clear()
    run(serve(TransportConfig(proxy_protocol_trusted=("10.0.0.1",)), test))
    assert "this server has no certificate" in caplog.text


def test_a_client_refuses_a_certificate_of_another_root_or_another_host(
    run: Any, authority: Authority, tmp_path: Path
) -> None:
    files = authority.issue("server", "192.0.2.1")
    stranger = Authority(tmp_path / "stranger").issue("server", HOST)

    async def test(served: Served) -> None:
        with pytest.raises(ConnectFailedError, match=r"certificate refused: .*mismatch"):
            await served.ping(of_client(files))
        with pytest.raises(ConnectFailedError, match="certificate refused"):
            await served.ping(of_client(stranger, is_host_checked=False))
        assert await served.ping(of_client(files, is_host_checked=False)) == b"ping"
        assert await served.ping(TlsClientConfig(is_server_verified=False)) == b"ping"

    run(serve(of_server(files), test))


def test_mutual_tls_serves_only_clients_with_a_valid_certificate(
    run: Any, authority: Authority, tmp_path: Path
) -> None:
    files = authority.issue("server", HOST)
    ours = authority.issue("client", "billing.example")
    theirs = Authority(tmp_path / "stranger").issue("client", "billing.example")
    config = of_server(
        files,
        tls_server_need_client_auth=ClientAuth.REQUIRE,
        tls_server_auth_client=True,
        tls_server_trust_cert_path=authority.root,
    )

    async def test(served: Served) -> None:
        good = of_client(files, cert_path=ours.cert, key_path=ours.key)
        assert await served.ping(good) == b"ping"
        # With TLS 1.3 a client sees the refusal only after its own side of the handshake is done.
        for bad in (of_client(files), of_client(files, cert_path=theirs.cert, key_path=theirs.key)):
            with pytest.raises((ConnectFailedError, ConnectionLostError)):
                await served.ping(bad)
        assert len(served.server.connections) == 0
        assert await served.ping(good) == b"ping"

    run(serve(config, test))


def test_optional_client_certificates_are_verified_if_presented(
    run: Any, authority: Authority, tmp_path: Path
) -> None:
    files = authority.issue("server", HOST)
    theirs = Authority(tmp_path / "stranger").issue("client", "billing.example")
    config = of_server(
        files,
        tls_server_need_client_auth=ClientAuth.OPTIONAL,
        tls_server_auth_client=True,
        tls_server_trust_cert_path=authority.root,
    )

    async def test(served: Served) -> None:
        assert await served.ping(of_client(files)) == b"ping"
        with pytest.raises((ConnectFailedError, ConnectionLostError)):
            await served.ping(of_client(files, cert_path=theirs.cert, key_path=theirs.key))

    run(serve(config, test))


def test_a_renewed_certificate_is_used_for_new_connections(
    run: Any, authority: Authority, tmp_path: Path
) -> None:
    files = authority.issue("server", HOST)
    renewing = Authority(tmp_path / "next")

    async def test(served: Served) -> None:
        before = ConnectionPool(served.runtime, {}, LIMITS, tls=of_client(files))
        address = format_address(served.address)
        assert (await before.request(address, request(ECHO, body=b"1"), PATIENCE_S)).body == b"1"
        renewed = renewing.issue("server", HOST)
        files.cert.write_bytes(renewed.cert.read_bytes())
        # The key of the new certificate is not written yet: the old pair stays in use.
        assert await served.ping(of_client(files)) == b"ping"
        files.key.write_bytes(renewed.key.read_bytes())

        assert await served.ping(of_client(renewed)) == b"ping"
        with pytest.raises(ConnectFailedError, match="certificate refused"):
            await served.ping(of_client(files))
        assert (await before.request(address, request(ECHO, body=b"2"), PATIENCE_S)).body == b"2"
        await before.close()

    run(serve(of_server(files), test))


def test_files_that_vanish_leave_the_last_good_certificate_in_use(authority: Authority) -> None:
    files = authority.issue("server", HOST)
    context = TlsContext.of_server(TlsServerConfig(cert_path=files.cert, key_path=files.key))
    first = context.current()
    files.cert.unlink()
    assert context.current() is first
    authority.issue("server", HOST)
    assert context.current() is not first
    assert context.current() is context.current()


def test_a_client_that_stalls_in_its_handshake_is_closed(run: Any, authority: Authority) -> None:
    files = authority.issue("server", HOST)

    async def test(served: Served) -> None:
        client = await RawClient.connect(served.runtime.network, served.address)
        client.write(b"\x16\x03\x01\x02\x00")
        await client.closed()
        assert await served.ping(None) == b"ping"  # plain: 50 ms may be too short for a handshake

    run(serve(of_server(files), test, ConnectionLimits(handshake_timeout_ms=50)))


def test_a_peer_that_sends_nothing_is_closed(run: Any, authority: Authority) -> None:
    files = authority.issue("server", HOST)

    async def test(served: Served) -> None:
        client = await RawClient.connect(served.runtime.network, served.address)
        await client.closed()
        assert client.received == b""

    run(serve(of_server(files), test, ConnectionLimits(idle_timeout_ms=50)))


def test_connections_being_set_up_are_bounded(run: Any, authority: Authority) -> None:
    files = authority.issue("server", HOST)

    async def test(served: Served) -> None:
        silent = [await RawClient.connect(served.runtime.network, served.address) for _ in range(2)]
        one_more = await RawClient.connect(served.runtime.network, served.address)
        await one_more.closed()
        for client in silent:
            client.write(encode_frame(request(ECHO, body=b"late")))
            (answer,) = await client.take(1)
            assert answer.body == b"late"
            client.close()

    run(serve(of_server(files), test, ConnectionLimits(connections_max=2)))


def test_stop_closes_connections_being_set_up(run: Any, authority: Authority) -> None:
    files = authority.issue("server", HOST)

    async def test(served: Served) -> None:
        silent = await RawClient.connect(served.runtime.network, served.address)
        handshaking = await RawClient.connect(served.runtime.network, served.address)
        handshaking.write(b"\x16\x03\x01\x02\x00")
        assert await served.ping(None) == b"ping"
        await served.server.stop()
        await silent.closed()
        await handshaking.closed()
        with pytest.raises(ConnectFailedError):
            await served.ping(None)

    run(serve(of_server(files), test))


def test_a_client_of_the_standard_library_is_served(run: Any, authority: Authority) -> None:
    files = authority.issue("server", HOST)
    context = ssl.create_default_context(cafile=files.root)
    frame = encode_frame(request(ECHO, body=b"x" * 100_000))

    def exchange(address: Address) -> int:
        with (
            socket.create_connection(address, timeout=PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as secure,
        ):
            secure.sendall(frame * 3)
            left = 3 * 100_000
            while left > 0:
                left -= len(secure.recv(65536))
            return left

    async def test(served: Served) -> None:
        assert await asyncio.to_thread(exchange, served.address) <= 0

    run(serve(of_server(files), test))


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_completes_a_handshake_with_each_version(
    run: Any, authority: Authority, version: str
) -> None:
    files = authority.issue("server", HOST)

    async def test(served: Served) -> None:
        command = ["openssl", "s_client", "-connect", format_address(served.address), version]
        trust = ["-CAfile", str(files.root), "-verify_return_error", "-brief"]
        done = await asyncio.to_thread(
            subprocess.run, [*command, *trust], input=b"", capture_output=True, timeout=60
        )
        assert b"Verification: OK" in done.stderr + done.stdout, done.stderr

    run(serve(of_server(files), test))


def test_versions_and_ciphers_are_restricted(authority: Authority) -> None:
    files = authority.issue("server", HOST)
    context = TlsContext.of_server(
        TlsServerConfig(
            cert_path=files.cert,
            key_path=files.key,
            protocols=("TLSv1.2",),
            ciphers=("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        )
    ).current()
    assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_2
    old = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"]
    assert sorted(old) == ["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"]


def test_a_key_with_a_password_needs_it(authority: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415

    files = authority.issue("server", HOST)
    key = form.load_pem_private_key(files.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            form.Encoding.PEM,
            form.PrivateFormat.PKCS8,
            form.BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    right = TlsServerConfig(cert_path=files.cert, key_path=locked, key_password=PASSWORD)
    TlsContext.of_server(right)
    assert PASSWORD not in repr(right)
    for password in (None, "wrong"):
        config = TlsServerConfig(cert_path=files.cert, key_path=locked, key_password=password)
        with pytest.raises(ConfigError, match=r"locked\.key"):
            TlsContext.of_server(config)


def test_unusable_files_are_refused_with_their_names(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue("server", HOST)
    other = authority.issue("other", HOST)
    (tmp_path / "empty").touch()

    def server(cert: Path, key: Path) -> TlsContext:
        return TlsContext.of_server(TlsServerConfig(cert_path=cert, key_path=key))

    with pytest.raises(ConfigError, match=r"nowhere.*: No such file"):
        server(tmp_path / "nowhere", files.key)
    with pytest.raises(ConfigError, match="mismatch"):
        server(files.cert, other.key)
    with pytest.raises(ConfigError, match="empty"):
        TlsContext.of_client(TlsClientConfig(trust_cert_path=tmp_path / "empty"))
    with pytest.raises(ConfigError, match="ciphers BEST"):
        TlsContext.of_client(TlsClientConfig(ciphers=("BEST",)))


def test_a_tls_client_that_does_not_read_is_closed(run: Any, authority: Authority) -> None:
    files = authority.issue("server", HOST)
    limits = ConnectionLimits(output_bytes_max=32 * 1024 * 1024)
    body = bytes(8 * 1024 * 1024)

    async def test(served: Served) -> None:
        client = cast(
            RawClient,
            await served.runtime.network.connect(
                served.address, RawClient, PATIENCE_S, tls=TlsContext.of_client(of_client(files))
            ),
        )
        client.write(encode_frame(request(ECHO)))
        await client.take(1)
        client.pause()
        (connection,) = served.server.connections
        for _ in range(5):
            connection.send(request(ECHO, body=body))
        assert not connection.is_open
        client.resume()
        await client.closed()

    run(serve(of_server(files), test, limits))
