"""Tests of selections: the connection of requests beside the read, and the options of commands."""

from __future__ import annotations

import pytest

from kourou.cli.pipeline_run import select
from kourou.errors import UsageError
from kourou.pipelines.selection import Selection, read_options, selected


def test_requests_use_the_connection_of_the_read() -> None:
    options = {
        "maxOffsetsPerTrigger": "9",
        "useTLS": "true",
        "tlsCaFile": "ca.pem",
        "namespace": "shop",
    }
    selection = Selection(name_server="broker:9876", topics=("a", "b"), options=options)

    read = read_options(selection)

    assert (read.client.name_server, read.client.namespace) == ("broker:9876", "shop")
    assert (read.client.use_tls, read.client.tls_ca_file) == (True, "ca.pem")
    assert read.source.topics == ("a", "b")


def test_commands_pass_the_namespace_and_tls_of_the_environment_to_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert select("broker:9876", ["a"], "earliest", "now").options == {}

    monkeypatch.setenv("KOUROU_NAMESPACE", "shop")
    monkeypatch.setenv("KOUROU_TLS_ENABLE", "true")
    monkeypatch.setenv("KOUROU_TLS_TRUST_CERT_PATH", "ca.pem")

    options = select("broker:9876", ["a"], "earliest", "now").options
    assert options == {"namespace": "shop", "useTls": "true", "tlsCaFile": "ca.pem"}

    monkeypatch.setenv("KOUROU_TLS_IS_HOST_CHECKED", "false")
    with pytest.raises(UsageError, match="KOUROU_TLS_TRUST_CERT_PATH only"):
        select("broker:9876", ["a"], "earliest", "now")


def test_a_selection_with_an_end_defines_no_stream() -> None:
    selection = Selection(name_server="", topics=("b", "a"), tags="eu")

    assert selected(selection) == {"TOPIC": "a b", "--tag": "eu"}
    with pytest.raises(UsageError, match="--to is given"):
        selected(Selection(name_server="", topics=("a",), until_ms=1))
