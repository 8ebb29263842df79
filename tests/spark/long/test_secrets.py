"""Tests that secrets appear in nothing that Spark or Kourou shows or stores."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kourou.auth.credentials import (
    ACCESS_KEY_VARIABLE,
    SECRET_KEY_VARIABLE,
    SECURITY_TOKEN_VARIABLE,
)
from kourou.model.message import Message
from kourou.spark.read_options import parse_read_options
from tests.spark.conftest import Publish

ROOT = Path(__file__).parents[3]
SECRET = "Xq7fVb2nKd9sLw4z"  # noqa: S105 - of no server
TOKEN = "Zp3mRt8cHy6gJa1u"  # noqa: S105 - likewise
FORMS = [
    form
    for text in (SECRET.encode(), TOKEN.encode())
    for form in (text, base64.b64encode(text), text.hex().encode())
]


@pytest.mark.spark
@pytest.mark.slow
def test_secrets_of_the_environment_appear_nowhere(
    namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish([Message("signed", b"first")])
    directory = tmp_path / "shown"
    environment = {
        **os.environ,
        ACCESS_KEY_VARIABLE: "alice",
        SECRET_KEY_VARIABLE: SECRET,
        SECURITY_TOKEN_VARIABLE: TOKEN,
    }

    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.signed_jobs", namesrv, str(directory)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr.decode()
    (directory / "output").write_bytes(done.stdout + done.stderr)
    check_jobs_ran(directory)
    files = [path for path in directory.rglob("*") if path.is_file()]
    leaks = [path.name for path in files for form in FORMS if form in path.read_bytes()]
    assert not leaks


def check_jobs_ran(directory: Path) -> None:
    """Verify that the searched files have the content in which secrets would appear."""
    shown: dict[str, Any] = json.loads((directory / "shown.json").read_text())
    assert (shown["rows"], shown["copied"]) == (41, 41)
    assert sum("keys are not accepted" in text for text in shown["errors"]) == 2
    assert sum("absent" in text for text in shown["errors"]) == 1
    assert "client=ConnectionOptions(" in shown["reprs"][0]
    redacted = f"spark.executorEnv.{SECRET_KEY_VARIABLE}"
    assert any(redacted in text for text in shown["ui"].values())
    [log] = (directory / "event-log").rglob("events_*")
    assert redacted.encode() in log.read_bytes()
    assert (directory / "checkpoint" / "commits" / "0").is_file()
    assert (directory / "read-checkpoint" / "commits" / "0").is_file()


def test_options_hold_the_name_of_the_file_only(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"accessKey: alice\nsecretKey: {SECRET}\n")
    file.chmod(0o600)
    options = parse_read_options(
        {"nameServer": "n:1", "topic": "t", "credentialsFile": str(file)}, is_stream=False
    )

    settings = options.client.settings()

    assert settings["credentials"] is not None
    assert settings["credentials"].secret_key == SECRET
    assert SECRET not in repr(options) + repr(settings)
