"""Tests that all commands sign with the keys of the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kourou.testing.process import Outcome, Serving

Command = Callable[..., Outcome]
KEYS = {"KOUROU_ACCESS_KEY": "alice", "KOUROU_SECRET_KEY": "s3cr3t"}

ASKING = [
    ("topic", "list"),
    ("cluster", "list"),
    ("group", "list"),
    ("broker", "list"),
    ("send", "t", "body"),
    ("receive", "t"),
    ("receive", "t", "--group", "g"),
    ("message", "find", "t", "key"),
    ("message", "show", "t", "C0000202203E54E0E2F2A678B64B3002A"),
    ("message", "print", "t"),
    ("message", "recall", "t", "handle"),
    ("dlq", "list", "g"),
    ("doctor",),
    ("health",),
]


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_each_command_reads_credentials_before_connecting(
    command: Command, words: tuple[str, ...]
) -> None:
    """A command that ignored the credentials would connect first, and find no server."""
    done = command(*words, environ={"KOUROU_ACCESS_KEY": "alice", "KOUROU_NAMESRV": "127.0.0.1:1"})
    assert done.code == 2
    assert "KOUROU_SECRET_KEY is missing" in done.err


@pytest.mark.slow
def test_commands_with_credentials_work_with_servers_that_do_not_verify(
    command: Command, serving: Serving, tmp_path: Path
) -> None:
    address = {"KOUROU_NAMESRV": serving.namesrv}
    file = tmp_path / "keys"
    file.write_text("accessKey: alice\nsecretKey: s3cr3t\n")
    file.chmod(0o640)
    by_file = address | {"KOUROU_CREDENTIALS_FILE": str(file)}
    refused = command("topic", "list", environ=by_file)
    assert refused.code == 2
    assert "chmod 600" in refused.err
    assert "s3cr3t" not in refused.err + refused.out
    file.chmod(0o600)
    for environ in (by_file, address | KEYS):
        assert command("send", "signed-orders", "one", environ=environ).code == 0
        received = command(
            "receive", "signed-orders", "--from", "earliest", "--count", "1", environ=environ
        )
        assert [row["body"] for row in received.rows] == ["one"]
