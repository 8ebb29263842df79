"""Tests of the parsers of times: ends of the queue, spans and instants."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.cli.start_time import Start, parse_ahead, parse_start
from kourou.errors import UsageError
from kourou.model.instants import parse_duration, parse_instant

NOW_MS = 1_735_819_384_125


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("latest", Start.LATEST),
        ("EARLIEST", Start.EARLIEST),
        (" earliest ", Start.EARLIEST),
        ("-90s", NOW_MS - 90_000),
        ("-15m", NOW_MS - 15 * 60_000),
        ("-1h", NOW_MS - 3_600_000),
        ("-2d", NOW_MS - 2 * 86_400_000),
        ("-999999d", 0),
        ("1735819384125", NOW_MS),
        ("0", 0),
        ("2025-01-02T12:03:04.125Z", NOW_MS),
        ("2025-01-02T13:03:04.125+01:00", NOW_MS),
        ("1969-12-31T00:00Z", 0),
    ],
)
def test_a_start_is_an_end_or_an_instant(text: str, start: Start | int) -> None:
    assert parse_start(text, NOW_MS) == start


def test_instant_is_now_a_span_or_a_time_but_no_queue_end() -> None:
    assert parse_instant("now", NOW_MS, "--to") == NOW_MS
    assert parse_instant("-1h", NOW_MS, "--to") == NOW_MS - 3_600_000
    assert parse_instant("2025-01-02T12:03:04.125Z", NOW_MS, "--to") == NOW_MS
    with pytest.raises(UsageError, match=r"--to 'latest' is not a time: use now"):
        parse_instant("latest", NOW_MS, "--to")


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2025, 1, 2, 12, 3, 4).astimezone()  # local time is intended

    assert parse_start("2025-01-02T12:03:04", NOW_MS) == int(local.timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "yesterday", "1h", "-1y", "-1.5h", "2025-13-01", "-h", "²"])
def test_invalid_start_is_refused_with_the_allowed_forms(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_start(text, NOW_MS)

    assert repr(text) in str(caught.value)
    assert "-15m" in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_start_or_refused(text: str) -> None:
    try:
        start = parse_start(text, NOW_MS)
    except UsageError:
        return
    assert isinstance(start, Start) or start >= 0


@given(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_iso_time_round_trips(at: datetime) -> None:
    assert parse_start(at.isoformat(), NOW_MS) == int(at.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("15m", 900_000), (" 1h", 3_600_000), ("2d", 172_800_000)]
)
def test_a_span_is_a_number_and_its_unit(text: str, ms: int) -> None:
    assert parse_duration(text, "--delay") == ms


def test_delivery_time_must_be_in_the_future_and_absolute() -> None:
    assert parse_ahead(str(NOW_MS + 1), NOW_MS, "--at") == NOW_MS + 1
    for past in (str(NOW_MS), str(NOW_MS // 1000), "2020-12-24T18:00"):
        with pytest.raises(UsageError, match="which is in the past: use a later time, or omit"):
            parse_ahead(past, NOW_MS, "--at")
    for nothing in ("now", "-15m", "15m", "tomorrow"):
        with pytest.raises(UsageError, match=f"--at '{nothing}' is not a time: use 2025-"):
            parse_ahead(nothing, NOW_MS, "--at")


def test_zero_span_is_refused() -> None:
    with pytest.raises(UsageError, match="--delay '0s' has no length: omit"):
        parse_duration("0s", "--delay")


@pytest.mark.parametrize("text", ["", "-1h", "10", "1.5h", "1y", "2025-01-01"])
def test_invalid_span_is_refused_with_the_allowed_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"--delay .* is not a span: use 90s, 15m, 1h or 2d"):
        parse_duration(text, "--delay")
