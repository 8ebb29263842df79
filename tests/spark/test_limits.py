"""Tests of the limits of a streaming batch, on queues with random store times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.model.queue import MessageQueue
from kourou.spark.limits import SKEW_MS, Sample, TriggerLimits, limit_ends

Q0, Q1, Q2 = (MessageQueue("flights", "broker-a", number) for number in range(3))
HOUR_MS = 3_600_000


@dataclass
class Log(dict[MessageQueue, list[int]]):
    """Probe on queues given as lists of store times; counts its requests."""

    record_bytes: Mapping[MessageQueue, int] = field(default_factory=dict)
    silent: frozenset[MessageQueue] = frozenset()
    requests: int = 0

    def samples(self, offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, Sample]:
        self.requests += len(offsets)
        return {
            queue: Sample(self[queue][offset], self.record_bytes.get(queue, 1000))
            for queue, offset in offsets.items()
            if queue not in self.silent
        }

    def offsets_at(
        self, queues: Sequence[MessageQueue], time_ms: int
    ) -> Mapping[MessageQueue, int]:
        self.requests += len(queues)
        return {q: bisect_left(self[q], time_ms) for q in queues if q not in self.silent}


def log_of(queues: Mapping[MessageQueue, list[int]], **options: object) -> Log:
    log = Log(**options)  # type: ignore[arg-type]
    log.update(queues)
    return log


def advance(log: Log, limits: TriggerLimits, *, with_probe: bool = True) -> dict[MessageQueue, int]:
    """Return the ends of a batch that begins at offset 0 of all queues."""
    starts = dict.fromkeys(log, 0)
    ends = {queue: len(times) for queue, times in log.items()}
    return limit_ends(starts, ends, limits, log if with_probe else None)


def test_without_limits_a_batch_takes_everything_and_sends_no_request() -> None:
    log = log_of({Q0: [1, 2], Q1: []})

    assert advance(log, TriggerLimits()) == {Q0: 2, Q1: 0}
    assert advance(log, TriggerLimits(max_offsets=2)) == {Q0: 2, Q1: 0}
    assert log.requests == 0


def test_the_limit_is_used_up_to_the_last_offset() -> None:
    log = log_of({Q0: list(range(0, 90_000, 9)), Q1: list(range(50_000))})

    ends = advance(log, TriggerLimits(max_offsets=7_001))

    assert sum(ends.values()) == 7_001


def test_queues_of_unequal_backlog_advance_together_by_store_time() -> None:
    """One queue has a message a millisecond, the other one a second, over the same day."""
    day_ms = 24 * HOUR_MS
    log = log_of({Q0: list(range(0, day_ms, 100)), Q1: list(range(0, day_ms, 10_000))})

    ends = advance(log, TriggerLimits(max_offsets=100_000))

    last_ms = [log[queue][end - 1] for queue, end in ends.items()]
    assert sum(ends.values()) == 100_000
    assert max(last_ms) - min(last_ms) <= 10_000 + SKEW_MS


def test_an_old_backlog_is_read_before_newer_messages_of_other_queues() -> None:
    """A broker was away for hours: its queue is behind those of the others."""
    log = log_of({Q0: list(range(2 * HOUR_MS)), Q1: list(range(2 * HOUR_MS, 2 * HOUR_MS + 9_000))})

    assert advance(log, TriggerLimits(max_offsets=1_000)) == {Q0: 1_000, Q1: 0}


def test_the_search_needs_few_requests_at_a_steady_rate() -> None:
    log = log_of({queue: list(range(0, 72 * HOUR_MS, 5_000)) for queue in (Q0, Q1, Q2)})

    advance(log, TriggerLimits(max_offsets=600))

    assert log.requests <= 3 * 14


def test_without_a_probe_queues_advance_by_their_backlog() -> None:
    log = log_of({Q0: list(range(900)), Q1: list(range(100))})

    ends = advance(log, TriggerLimits(max_offsets=100), with_probe=False)

    assert ends == {Q0: 90, Q1: 10}


def test_queues_advance_by_their_backlog_if_one_does_not_answer() -> None:
    log = log_of({Q0: list(range(900)), Q1: list(range(100))}, silent=frozenset({Q1}))

    assert advance(log, TriggerLimits(max_offsets=100)) == {Q0: 90, Q1: 10}


def test_bytes_are_estimated_from_samples_of_each_queue() -> None:
    log = log_of({Q0: list(range(1_000)), Q1: list(range(1_000))}, record_bytes={Q0: 100, Q1: 300})

    ends = advance(log, TriggerLimits(max_bytes=40_000))

    assert ends == {Q0: 100, Q1: 100}


def test_the_tighter_limit_counts() -> None:
    log = log_of({Q0: list(range(1_000))}, record_bytes={Q0: 100})

    assert advance(log, TriggerLimits(max_bytes=40_000, max_offsets=10)) == {Q0: 10}
    assert advance(log, TriggerLimits(max_bytes=700, max_offsets=10)) == {Q0: 7}


def test_a_message_larger_than_the_limit_is_read_alone() -> None:
    log = log_of({Q0: [7, 8], Q1: [5, 6]}, record_bytes={Q0: 5_000, Q1: 5_000})

    assert advance(log, TriggerLimits(max_bytes=10)) == {Q0: 0, Q1: 1}


def test_a_batch_spans_at_most_the_requested_time() -> None:
    log = log_of({Q0: [0, 999, 1_000], Q1: [500, 5_000], Q2: [2_000]})

    assert advance(log, TriggerLimits(max_time_span_ms=1_000)) == {Q0: 2, Q1: 1, Q2: 0}


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_clock_that_went_back_does_not_stall_the_stream(limit: int) -> None:
    log = log_of({Q0: [9_000, 9_001, 10, 11, 12]})

    ends = advance(log, TriggerLimits(max_offsets=limit, max_time_span_ms=100))

    assert 1 <= ends[Q0] <= limit


@st.composite
def logs(draw: st.DrawFn) -> Log:
    gaps = st.lists(st.integers(0, 50_000), max_size=60)
    log = Log(record_bytes={q: draw(st.integers(1, 2_000)) for q in (Q0, Q1, Q2)})
    for queue in (Q0, Q1, Q2):
        time_ms, times = draw(st.integers(0, 10**6)), []
        for gap in draw(gaps):
            time_ms += gap
            times.append(time_ms)
        # Some queues are not sorted, as after a jump of a broker's clock.
        log[queue] = times if draw(st.booleans()) else draw(st.permutations(times))
    log.silent = frozenset(draw(st.sets(st.sampled_from([Q0, Q1, Q2]))))
    return log


@given(
    log=logs(),
    limits=st.builds(
        TriggerLimits,
        max_offsets=st.none() | st.integers(1, 100),
        max_bytes=st.none() | st.integers(1, 50_000),
        max_time_span_ms=st.none() | st.integers(1, 100_000),
    ),
    with_probe=st.booleans(),
)
def test_a_batch_is_within_its_limits_and_never_empty(
    log: Log, limits: TriggerLimits, with_probe: bool
) -> None:
    ends = advance(log, limits, with_probe=with_probe)

    total = sum(map(len, log.values()))
    read = sum(ends.values())
    assert all(0 <= ends[queue] <= len(log[queue]) for queue in log)
    assert read >= min(1, total)
    if limits.max_offsets is not None:
        assert read <= limits.max_offsets
    if limits.max_bytes is not None and with_probe and not log.silent and read > 1:
        assert sum(end * log.record_bytes[q] for q, end in ends.items()) <= limits.max_bytes
    if limits == TriggerLimits(max_offsets=limits.max_offsets):
        assert read == min(total, limits.max_offsets or total)
