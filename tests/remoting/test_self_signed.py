"""A server without a certificate generates one that clients can trust, and renews it."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from kourou.clock import SystemClock
from kourou.errors import ConfigError
from kourou.remoting.self_signed import (
    GENERATORS,
    RENEW_DAYS,
    VALID_DAYS,
    CertificateGenerator,
    SelfSignedCertificate,
    ensure_certificate,
    generate_by_package,
    generate_by_program,
)
from kourou.remoting.tls import TlsClientConfig
from tests.remoting.certificates import Authority, Files
from tests.remoting.tls_rig import RUNNERS, Served, of_server, serve

DAY_MS = 24 * 3600 * 1000
NOW_MS = SystemClock().now_ms()
"""The real time, because OpenSSL checks certificates against the machine's clock."""

WITHOUT_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(
    params=[generate_by_package, pytest.param(generate_by_program, marks=WITHOUT_OPENSSL)]
)
def generate(request: pytest.FixtureRequest) -> CertificateGenerator:
    made: CertificateGenerator = request.param
    return made


@pytest.fixture
def own(tmp_path: Path) -> SelfSignedCertificate:
    return ensure_certificate(tmp_path, ["broker.example"], NOW_MS)


def test_a_trusting_client_connects_by_each_host(
    tmp_path: Path, generate: CertificateGenerator
) -> None:
    own = ensure_certificate(tmp_path, ["10.0.0.5", "broker.example"], NOW_MS, [generate])

    async def test(served: Served) -> None:
        trusting = TlsClientConfig(trust_cert_path=own.certificate)
        assert await served.ping(trusting) == b"ping"
        served.address = ("localhost", served.address[1])
        assert await served.ping(trusting) == b"ping"

    files = Files(own.pem, own.pem, own.certificate)
    RUNNERS["asyncio"](serve(of_server(files), test))


def test_a_strictly_verifying_client_accepts_the_certificate(
    tmp_path: Path, generate: CertificateGenerator
) -> None:
    own = ensure_certificate(tmp_path, ["Broker.example"], NOW_MS, [generate])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own.pem)
    client = ssl.create_default_context(cafile=own.certificate)
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname="broker.example")
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (asking, answering) * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert asking.version() == "TLSv1.3"


def test_grpcio_accepts_the_certificate_as_its_only_root(
    tmp_path: Path, generate: CertificateGenerator
) -> None:
    own = ensure_certificate(tmp_path, [], NOW_MS, [generate])
    key, begin, rest = own.pem.read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(key, begin + rest)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    program = f"""
import grpc
channel = grpc.secure_channel("127.0.0.1:{port}", grpc.ssl_channel_credentials())
grpc.channel_ready_future(channel).result(timeout=10)
"""
    roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(own.certificate)}  # read once in a process
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **roots},
        capture_output=True,
        text=True,
        check=False,
    )
    server.stop(None)
    assert ended.returncode == 0, ended.stderr


def test_the_key_is_readable_by_its_owner_only(own: SelfSignedCertificate) -> None:
    assert own.pem.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE KEY" in own.pem.read_bytes()
    assert b"PRIVATE KEY" not in own.certificate.read_bytes()
    assert sorted(path.name for path in own.pem.parent.iterdir()) == ["server.crt", "server.pem"]


def test_a_valid_certificate_is_kept(tmp_path: Path, own: SelfSignedCertificate) -> None:
    before = own.pem.read_bytes()
    later_ms = NOW_MS + (VALID_DAYS - RENEW_DAYS - 2) * DAY_MS
    for hosts in (["broker.example"], ["BROKER.example", "localhost"]):
        ensure_certificate(tmp_path, hosts, later_ms, [])
    assert own.pem.read_bytes() == before


def test_a_certificate_is_replaced_before_expiry_and_when_hosts_change(
    tmp_path: Path, own: SelfSignedCertificate
) -> None:
    seen = {own.pem.read_bytes()}
    later_ms = NOW_MS + (VALID_DAYS - RENEW_DAYS) * DAY_MS
    for hosts, now_ms in (
        (["broker.example"], later_ms),
        (["other.example"], NOW_MS),
        ([], NOW_MS),
    ):
        ensure_certificate(tmp_path, hosts, now_ms)
        assert own.certificate.read_bytes() in own.pem.read_bytes()
        seen.add(own.pem.read_bytes())
        ensure_certificate(tmp_path, hosts, NOW_MS)
    assert len(seen) == 4


def assert_replaced(directory: Path, own: SelfSignedCertificate, unusable: bytes) -> None:
    """Assert that a file with this content is replaced once, by a valid certificate."""
    own.pem.write_bytes(unusable)
    ensure_certificate(directory, ["broker.example"], NOW_MS)
    replaced = own.pem.read_bytes()
    assert replaced != unusable
    ensure_certificate(directory, ["broker.example"], NOW_MS, [])  # valid: nothing is generated
    assert own.pem.read_bytes() == replaced


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: b"",
        lambda content: b"no PEM",
        lambda content: content[: len(content) // 2],
        lambda content: content[:300] + b"!" + content[301:],
        lambda content: content[: content.index(b"-----BEGIN CERT")],
        lambda content: content[content.index(b"-----BEGIN CERT") :],
    ],
)
def test_a_damaged_file_is_replaced(
    tmp_path: Path, own: SelfSignedCertificate, harm: Callable[[bytes], bytes]
) -> None:
    assert_replaced(tmp_path, own, harm(own.pem.read_bytes()))


def test_a_first_certificate_is_logged_and_a_replacement_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kourou")
    for host in ("first.example", "other.example"):
        ensure_certificate(tmp_path, [host], NOW_MS)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "it names other hosts" in caplog.text


def test_a_key_of_another_certificate_is_replaced(
    tmp_path: Path, own: SelfSignedCertificate
) -> None:
    stranger = Authority(tmp_path / "pki").issue("x", "broker.example")
    assert_replaced(tmp_path, own, stranger.key.read_bytes() + own.certificate.read_bytes())


def test_the_client_file_is_restored_and_a_readable_key_is_restricted(
    tmp_path: Path, own: SelfSignedCertificate
) -> None:
    certificate = own.certificate.read_bytes()
    for harm in (own.certificate.unlink, lambda: own.certificate.write_text("x")):
        harm()
        own.pem.chmod(0o644)
        ensure_certificate(tmp_path, ["broker.example"], NOW_MS, [])
        assert own.certificate.read_bytes() == certificate
        assert own.pem.stat().st_mode & 0o777 == 0o600


def test_concurrent_generation_leaves_a_valid_certificate(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ensure_certificate(tmp_path, [], NOW_MS), range(16)))
    own = ensure_certificate(tmp_path, [], NOW_MS, [])
    assert own.pem.read_bytes().endswith(own.certificate.read_bytes())
    assert len(list(tmp_path.iterdir())) == 2


def test_without_package_and_program_the_error_says_what_to_install(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"pip install 'kourou\[server\]'"):
        ensure_certificate(tmp_path, [], NOW_MS, [lambda hosts, now_ms: None])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["a,b", "a\nb", "bröker", "-a", "a b", "", "a" * 300])
def test_a_host_that_no_certificate_can_name_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="a certificate cannot name it"):
        ensure_certificate(tmp_path, [host], NOW_MS, GENERATORS)


def test_a_failing_or_missing_program_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert generate_by_program(["localhost"], NOW_MS) is None

    (tmp_path / "openssl").write_text("#!/bin/sh\necho too old >&2\nexit 3\n")
    (tmp_path / "openssl").chmod(0o755)
    with pytest.raises(ConfigError, match="openssl exited with 3: too old"):
        generate_by_program(["localhost"], NOW_MS)


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tls").touch()
    with pytest.raises(OSError, match="tls"):
        ensure_certificate(tmp_path / "tls", [], NOW_MS)
