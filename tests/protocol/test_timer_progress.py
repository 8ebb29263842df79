"""The progress of a timer travels beside the check point of request 60."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedHeaderError
from kourou.protocol.brokers import TimerCheckPoint
from kourou.protocol.timer_progress import ReplicaProgress, decode_progress, encode_progress

numbers = st.integers(0, 10**18 - 1)


@given(st.tuples(numbers, numbers, numbers, numbers, numbers))
def test_progress_is_decoded_as_it_was_encoded(fields: tuple[int, int, int, int, int]) -> None:
    progress = ReplicaProgress(*fields)
    check_point = TimerCheckPoint(fields[0], 52, fields[1])
    assert decode_progress(check_point, encode_progress(progress)) == progress


@pytest.mark.parametrize(
    "text", ["", "1 2", "1 2 3 4", "1 2 x", "-1 2 3", "1  2 3", "1" * 20 + " 2 3"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(MalformedHeaderError, match="kourouTimerProgress"):
        decode_progress(TimerCheckPoint(), text)
