"""What the start screen says of addresses and of what recovery found."""

from __future__ import annotations

import dataclasses

from kourou.cli.process import _found, _reachable
from kourou.store.message_store import RecoveryReport
from kourou.store.state.abort_file import LastRun


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
