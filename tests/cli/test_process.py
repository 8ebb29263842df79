"""Tests of the server process: addresses, recovery text, and its certificate."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from kourou.cli.process import (
    Plan,
    certificate_renewal,
    reachable_address,
    recovery_text,
    with_self_signed,
)
from kourou.cli.serve import Profile, read_plan
from kourou.clock import SystemClock
from kourou.remoting.self_signed import RENEW_DAYS, VALID_DAYS
from kourou.store.message_store import RecoveryReport
from kourou.store.state.abort_file import LastRun
from kourou.testing.clock import ManualClock

DAY_MS = 24 * 3600 * 1000


def test_wildcard_address_becomes_loopback() -> None:
    assert reachable_address(("0.0.0.0", 5)) == ("127.0.0.1", 5)  # noqa: S104  # compared, not bound
    assert reachable_address(("::", 5)) == ("::1", 5)
    assert reachable_address(("10.0.0.1", 5)) == ("10.0.0.1", 5)


def plan_at(path: Path) -> Plan:
    return read_plan({"store_path": path}, None, Profile.DEV)


def test_certificate_is_renewed_and_reloaded_by_the_ports(
    tmp_path: Path,
) -> None:
    clock = ManualClock(SystemClock().now_ms())  # OpenSSL verifies with the machine's clock
    plan, certificate = with_self_signed(plan_at(tmp_path), clock)
    assert certificate is not None
    admission = plan.broker.transport.admission(plan.broker.limits)
    assert admission.tls is not None
    assert plan.namesrv is not None
    assert plan.namesrv.transport.tls_server() == plan.broker.transport.tls_server()
    before, context = certificate.read_bytes(), admission.tls.current()

    asyncio.run(certificate_renewal(plan, clock)())
    assert (certificate.read_bytes(), admission.tls.current()) == (before, context)

    clock.advance((VALID_DAYS - RENEW_DAYS) * DAY_MS)
    asyncio.run(certificate_renewal(plan, clock)())
    assert certificate.read_bytes() != before
    assert admission.tls.current() is not context


def test_failed_certificate_creation_leaves_plain_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tls").touch()
    asked = plan_at(tmp_path)
    plan, certificate = with_self_signed(asked, SystemClock())
    assert (plan, certificate) == (asked, None)
    assert "certificate.not_made tls=off" in caplog.text


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


def test_recovery_result_is_described() -> None:
    assert (
        recovery_text(dataclasses.replace(CRASHED, last_run=KILLED._replace(was_clean=True)))
        == "closed cleanly when last used"
    )
    assert recovery_text(CRASHED) == "recovered after a crash (1 message checked)"
    assert recovery_text(
        dataclasses.replace(CRASHED, records_scanned=1234, truncated_bytes=77)
    ) == ("recovered after a crash (1,234 messages checked, 77 torn bytes removed)")
