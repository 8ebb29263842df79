"""Tests of scheduled messages: `kourou send --delay` and `--at`, `kourou message recall`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kourou.clock import SystemClock
from kourou.testing.process import Outcome

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]


def test_scheduled_message_is_delivered_at_its_time(kourou: Kourou) -> None:
    kourou("send", "w-later", "later", "--delay", "2s")
    kourou("send", "w-later", "at once")

    rows = kourou("receive", "w-later", "--from", "earliest", "--count", "2").rows

    at_once, later = rows
    assert [at_once["body"], later["body"]] == ["at once", "later"]
    assert int(str(later["store_at_ms"])) - int(str(later["born_at_ms"])) >= 2_000


def test_messages_with_one_sharding_key_are_in_one_queue(kourou: Kourou) -> None:
    kourou("topic", "create", "w-keyed", "--queues", "8")

    sent = kourou("send", "w-keyed", "x", "--count", "20", "--sharding-key", "alice", "--json")

    assert len({row["queue_id"] for row in sent.rows}) == 1
    assert [row["queue_offset"] for row in sent.rows] == list(range(20))


def test_scheduled_message_is_recalled_once(kourou: Kourou) -> None:
    in_an_hour = str(SystemClock().now_ms() + 3_600_000)
    sent = kourou("send", "w-back", "x", "--at", in_an_hour)
    assert re.match(r"on disk  scheduled for \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  id \w+\n", sent.out)
    command = re.search(r"to recall it: kourou (message recall w-back (\S+))", sent.out)
    assert command is not None, sent
    kourou("broker", "set", "broker-a", "recallMessageEnable=false")
    refused = kourou(*command[1].split())
    assert refused.code == 1
    assert "kourou broker set broker-a recallMessageEnable=true" in refused.err
    kourou("broker", "set", "broker-a", "recallMessageEnable=true")

    first = kourou(*command[1].split())
    again = kourou(*command[1].split())
    late = kourou("message", "recall", "w-back", "nonsense")

    assert (first.code, first.out[:9]) == (0, "recalled:")
    assert (again.code, late.code) == (0, 2), (again, late)
    assert "nonsense" in late.err


@pytest.mark.parametrize(
    "options", [("--delay", "1h", "--at", "2099-01-01"), ("--delay-level", "3", "--delay", "1h")]
)
def test_several_delays_are_refused(kourou: Kourou, options: tuple[str, ...]) -> None:
    outcome = kourou("send", "w-none", "x", *options)

    assert outcome.code == 2
    assert "exclude each other: use one of them" in outcome.err
