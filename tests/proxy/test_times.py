"""Times convert as in protobuf's Java library, which rounds and refuses in its own way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import CallRefusedError
from kourou.proxy.pb.v2 import Code
from kourou.proxy.pb.wire import Duration, Timestamp
from kourou.proxy.times import duration, duration_ms, timestamp, timestamp_ms


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_timestamps_round_trip(ms: int) -> None:
    assert timestamp_ms(timestamp(ms)) == ms


@given(st.integers(0, 315_576_000_000_000))
def test_durations_round_trip(ms: int) -> None:
    assert duration_ms(duration(ms)) == ms


def test_parts_of_milliseconds_are_dropped() -> None:
    assert timestamp_ms(Timestamp(seconds=-1, nanos=999_999_999)) == -1
    assert duration_ms(Duration(seconds=1, nanos=999_999)) == 1_000
    assert duration_ms(Duration(seconds=-1, nanos=-1_999_999)) == -1_001
    assert duration_ms(Duration(nanos=-1_999_999)) == -1


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(253_402_300_800, 0), (-62_135_596_801, 0), (1, -1), (1, 10**9)]
)
def test_timestamps_out_of_range_are_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(CallRefusedError, match="years 1 to 9999") as refused:
        timestamp_ms(Timestamp(seconds=seconds, nanos=nanos))
    assert refused.value.code == Code.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(("seconds", "nanos"), [(1, -1), (-1, 1), (315_576_000_001, 0), (0, 10**9)])
def test_durations_out_of_range_are_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(CallRefusedError, match="parts of one sign"):
        duration_ms(Duration(seconds=seconds, nanos=nanos))
