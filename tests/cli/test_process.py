"""Which addresses other machines can reach, and which this one can."""

from __future__ import annotations

import dataclasses

import pytest

from kourou.cli.process import _found, _is_exposed, _reachable
from kourou.store.message_store import RecoveryReport
from kourou.store.state.abort_file import LastRun


@pytest.mark.parametrize(
    ("host", "is_exposed"),
    [
        ("127.0.0.1", False),
        ("127.9.9.9", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),  # noqa: S104  # compared, not bound
        ("::", True),
        ("10.0.0.1", True),
        ("broker.example", True),
        ("", True),
    ],
)
def test_all_but_loopback_is_open_to_others(host: str, *, is_exposed: bool) -> None:
    assert _is_exposed(host) == is_exposed


def test_what_listens_everywhere_is_reached_by_loopback() -> None:
    assert _reachable(("0.0.0.0", 5)) == ("127.0.0.1", 5)  # noqa: S104  # compared, not bound
    assert _reachable(("::", 5)) == ("::1", 5)
    assert _reachable(("10.0.0.1", 5)) == ("10.0.0.1", 5)


KILLED = LastRun(was_clean=False, was_kourou=True, is_cache_suspect=False, was_java_killed=False)
CRASHED = RecoveryReport(
    last_run=KILLED,
    records_scanned=1,
    truncated_bytes=0,
    redispatched=0,
    end=100,
    last=None,
    last_store_at_ms=0,
    scanned_from=0,
    damaged=(),
)


def test_what_recovery_found_is_said() -> None:
    assert (
        _found(dataclasses.replace(CRASHED, last_run=KILLED._replace(was_clean=True)))
        == "closed cleanly when last used"
    )
    assert _found(CRASHED) == "recovered after a crash (1 message checked)"
    assert _found(dataclasses.replace(CRASHED, records_scanned=1234, truncated_bytes=77)) == (
        "recovered after a crash (1,234 messages checked, 77 torn bytes cut)"
    )
