"""Tests of the official Java clients over TLS, with a configured and a self-signed certificate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kourou.testing.process import Serving
from tests.interop.clients import POMS, java_client
from tests.remoting.certificates import Authority

COUNT = 8


@pytest.fixture(scope="module")
def kourou(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Serve with a certificate; the broker also registers over TLS."""
    home = tmp_path_factory.mktemp("tls")
    files = Authority(home / "certificates").issue("server", "127.0.0.1", "localhost")
    config = home / "broker.conf"
    config.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={files.cert}\n"
        f"tls.server.keyPath={files.key}\ntls.enable=true\ntls.client.trustCertPath={files.root}\n"
    )
    with Serving.start(home / "store", "--config", str(config), "--no-console") as serving:
        yield serving
        assert serving.stop().code == 0


@pytest.mark.parametrize("version", list(POMS))
def test_java_client_works_over_tls(kourou: Serving, version: str) -> None:
    assert_sends_and_consumes(kourou, version)


@pytest.mark.parametrize("version", list(POMS))
def test_java_client_works_over_tls_with_the_self_signed_certificate(
    tmp_path: Path, version: str
) -> None:
    with Serving.start(tmp_path, "--no-console") as serving:
        assert serving.ready["certificate"] == str(tmp_path / "tls" / "server.crt")
        assert_sends_and_consumes(serving, version)


def assert_sends_and_consumes(kourou: Serving, version: str) -> None:
    """Send and consume over TLS; Java's clients accept any certificate by default."""
    plain = java_client(version)
    program, *words = plain.command
    client = replace(plain, command=(program, "-Dtls.enable=true", *words))
    topic = f"OverTls-{version}".replace(".", "_")

    sent = client.run("produce", kourou.namesrv, topic, COUNT)
    received = client.run("consume", kourou.namesrv, f"{topic}-group", topic, "*", COUNT, 0, 60)

    assert {line[1] for line in sent if line[0] == "sent"} == {"SEND_OK"}
    assert not [line for line in sent if line[0] == "failed"]
    assert ["done", "true"] in received
    assert sorted(line[1] for line in received if line[0] == "got") == [
        f"key-{n}" for n in range(COUNT)
    ]
