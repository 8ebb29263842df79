"""Limits of a streaming batch: how far each queue advances if not all new messages fit. Pure.

Queues advance together by store time, so that windows and watermarks of a query see their messages
in order even if the queues' backlogs differ. The planner asks a `Probe` for store times; where it
has no answer, queues advance in proportion to their backlogs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol

from kourou.model.queue import MessageQueue

MAX_DELAY_DEFAULT_MS: Final = 15 * 60 * 1000
"""How long `minOffsetsPerTrigger` holds messages back unless `maxTriggerDelay` is set."""

RECORD_BYTES_DEFAULT: Final = 1024
"""Assumed size of a record while no queue has a sample."""

SEARCH_ROUNDS_MAX: Final = 16
"""Maximum number of times for which one batch asks the queues' offsets."""

AIM_MARGIN: Final = 1 / 64
"""Distance from the limit, as a part of it, at which the search places its first two times."""

SKEW_MS: Final = 100
"""Store time by which queues may be apart at the end of a batch; a smaller value costs requests."""

SKEW_PARTS: Final = 100
"""They may also be apart by this part of the store time that the batch spans."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TriggerLimits:
    """Limits of one batch of a stream; None means no limit.

    Attributes:
        max_offsets: maximum number of offsets, and of rows (maxOffsetsPerTrigger).
        min_offsets: fewer new offsets wait for a later batch (minOffsetsPerTrigger).
        max_delay_ms: time after the previous batch at which they no longer wait (maxTriggerDelay).
        max_bytes: maximum size of the records, estimated from samples (maxBytesPerTrigger).
        max_time_span_ms: maximum difference of store times (maxTimeSpanPerTrigger).
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_DELAY_DEFAULT_MS
    max_bytes: int | None = None
    max_time_span_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The message at an offset: its store time, and the mean record size from there on."""

    store_time_ms: int
    record_bytes: int


class Probe(Protocol):
    """Queries of queues that limits need. A queue without an answer is left out of the result."""

    def samples(self, offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, Sample]:
        """Return a sample of each queue at its offset; subscriptions are not applied."""

    def offsets_at(
        self, queues: Sequence[MessageQueue], time_ms: int
    ) -> Mapping[MessageQueue, int]:
        """Return of each queue the first offset stored at `time_ms` or later, else its end."""


@dataclass(frozen=True, slots=True)
class _Budget:
    """One limit on a batch: offsets weigh `weights` each, and together at most `total`."""

    weights: Mapping[MessageQueue, int]
    total: int

    def used(self, starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]) -> int:
        return sum((ends[queue] - start) * self.weights[queue] for queue, start in starts.items())


Ends = dict[MessageQueue, int]


def limit_ends(
    starts: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    limits: TriggerLimits,
    probe: Probe | None = None,
) -> Ends:
    """Return the ends of a batch that begins at `starts`: at most `ends`, and within the limits.

    At least one offset is returned if there is any, also if it exceeds `max_bytes`. No request is
    sent if `max_offsets` is the only limit and does not bind.
    """
    limited = dict(ends)
    open_starts = {queue: start for queue, start in starts.items() if start < ends[queue]}
    if not open_starts or _all_fit(open_starts, ends, limits):
        return limited
    found = _advance(open_starts, {queue: ends[queue] for queue in open_starts}, limits, probe)
    return limited | found


def _all_fit(
    starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], limits: TriggerLimits
) -> bool:
    """Return whether no limit can bind, as far as the numbers of offsets tell."""
    if limits.max_bytes is not None or limits.max_time_span_ms is not None:
        return False
    rows = sum(ends[queue] - start for queue, start in starts.items())
    return limits.max_offsets is None or rows <= limits.max_offsets


def _advance(
    starts: Mapping[MessageQueue, int], ends: Ends, limits: TriggerLimits, probe: Probe | None
) -> Ends:
    heads = probe.samples(starts) if probe else {}
    if probe and heads and limits.max_time_span_ms is not None:
        first_ms = min(head.store_time_ms for head in heads.values())
        ends = _cut(probe, starts, ends, first_ms + limits.max_time_span_ms)
        if ends == starts:
            # The clock of a broker went back: its queues are not sorted by store time.
            ends = _one_more(starts, heads)
    budgets = _budgets(starts, heads, limits)
    if _fits(budgets, starts, ends):
        return ends
    low: Ends = dict(starts)
    # Store times of only some queues say nothing of the order of the others.
    if probe and len(heads) == len(starts):
        low, ends = _search(probe, starts, ends, heads, budgets)
    filled = _fill(budgets, starts, low, ends)
    return _one_more(starts, heads) if filled == starts else filled


def _budgets(
    starts: Mapping[MessageQueue, int],
    heads: Mapping[MessageQueue, Sample],
    limits: TriggerLimits,
) -> list[_Budget]:
    budgets: list[_Budget] = []
    if limits.max_offsets is not None:
        budgets.append(_Budget(dict.fromkeys(starts, 1), limits.max_offsets))
    if limits.max_bytes is not None:
        sizes = [max(1, head.record_bytes) for head in heads.values()]
        mean = sum(sizes) // len(sizes) if sizes else RECORD_BYTES_DEFAULT
        weights = {q: max(1, heads[q].record_bytes) if q in heads else mean for q in starts}
        budgets.append(_Budget(weights, limits.max_bytes))
    return budgets


def _fits(budgets: Sequence[_Budget], starts: Mapping[MessageQueue, int], ends: Ends) -> bool:
    return all(budget.used(starts, ends) <= budget.total for budget in budgets)


def _search(
    probe: Probe,
    starts: Mapping[MessageQueue, int],
    ends: Ends,
    heads: Mapping[MessageQueue, Sample],
    budgets: Sequence[_Budget],
) -> tuple[Ends, Ends]:
    """Return ends of a common store time that fit, and slightly later ones that do not."""
    tails = probe.samples({queue: end - 1 for queue, end in ends.items()})
    low, high = dict(starts), ends
    low_ms = min(head.store_time_ms for head in heads.values())
    high_ms = max((tail.store_time_ms + 1 for tail in tails.values()), default=low_ms)
    first_ms = low_ms
    for step in range(SEARCH_ROUNDS_MAX):
        near_ms = max(SKEW_MS, (low_ms - first_ms) // SKEW_PARTS)
        if high_ms - low_ms <= near_ms or all(high[q] - start <= 1 for q, start in low.items()):
            break
        # Interpolation to slightly below and above the limit finds a steady rate in two steps;
        # bisection bounds the number of steps for any other rate.
        margin = AIM_MARGIN / 4 ** (step // 3)
        aim = (1 - margin, 1 + margin, None)[step % 3]
        share = 0.5 if aim is None else _share(budgets, starts, low, high, aim)
        time_ms = low_ms + min(max(int((high_ms - low_ms) * share), 1), high_ms - low_ms - 1)
        middle = _cut(probe, low, high, time_ms)
        if _fits(budgets, starts, middle):
            low, low_ms = middle, time_ms
        else:
            high, high_ms = middle, time_ms
    return low, high


def _cut(probe: Probe, low: Mapping[MessageQueue, int], high: Ends, time_ms: int) -> Ends:
    """Return the offsets at the time, within [low, high]; without an answer, the lower bound."""
    queues = [queue for queue, start in low.items() if start < high[queue]]
    at = probe.offsets_at(queues, time_ms)
    return {q: min(max(at.get(q, start), start), high[q]) for q, start in low.items()}


def _share(
    budgets: Sequence[_Budget],
    starts: Mapping[MessageQueue, int],
    low: Ends,
    high: Ends,
    aim: float,
) -> float:
    """Return the part of the way from `low` to `high` that uses `aim` of the tightest budget."""
    return min(
        (budget.total * aim - budget.used(starts, low)) / max(1, budget.used(low, high))
        for budget in budgets
    )


def _fill(
    budgets: Sequence[_Budget], starts: Mapping[MessageQueue, int], low: Ends, high: Ends
) -> Ends:
    """Return `low` advanced towards `high` in proportion to the distances, as far as it fits."""
    # In whole numbers, because a float could exceed the budget by an offset.
    shares = [
        (budget.total - budget.used(starts, low), max(1, budget.used(low, high)))
        for budget in budgets
    ]
    part, whole = min(shares, key=lambda share: Fraction(*share))
    filled: Ends = {}
    lost: dict[MessageQueue, int] = {}
    for queue, start in low.items():
        advance, lost[queue] = divmod((high[queue] - start) * min(part, whole), whole)
        filled[queue] = start + advance
    for queue in sorted(lost, key=lambda queue: (-lost[queue], queue)):
        if lost[queue]:
            filled[queue] += 1
            if not _fits(budgets, starts, filled):
                filled[queue] -= 1
    return filled


def _one_more(starts: Mapping[MessageQueue, int], heads: Mapping[MessageQueue, Sample]) -> Ends:
    """Return `starts` advanced by the single oldest message, so that a stream never stalls."""
    oldest = min(
        starts,
        key=lambda queue: (heads[queue].store_time_ms if queue in heads else 0, queue),
    )
    return dict(starts) | {oldest: starts[oldest] + 1}
