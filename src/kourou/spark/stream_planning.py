"""Planning of the batches of a stream: the end of the next batch, and the losses on the way. Pure.

The caller queries the brokers (`View`), logs the end that is planned here (`StreamOffset`), and
fails or warns of the losses. Nothing is remembered between two plans but the time of the last
batch, so that a query may be killed and restarted between any two steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from kourou.errors import TransportError
from kourou.model.queue import MessageQueue
from kourou.spark.limits import Probe, TriggerLimits, limit_ends
from kourou.spark.planning import BrokerTopic, QueueBounds, broker_topic, name_of
from kourou.spark.stream_offsets import Absence, StreamOffset


@dataclass(frozen=True, slots=True)
class View:
    """Queues of a stream's topics, as the brokers show them at one moment.

    A queue that is in no field keeps its position: its broker is missing from the route or does not
    answer, for example because it restarts.

    Attributes:
        bounds: bounds of each queue whose broker answered; `max_offset` is the end of what
            consumers can see.
        vanished: queues that are not in the topic table of their broker, which answered.
        topic_begins: identities of topics, of the masters that answered and have some.
        silent: brokers of the route that did not answer, with the reason.
        replicas: brokers of which a replica answered, which may lack the newest messages.
    """

    bounds: Mapping[MessageQueue, QueueBounds]
    vanished: Mapping[MessageQueue, Absence] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    replicas: frozenset[str] = frozenset()
    topic_begins: Mapping[BrokerTopic, int] = field(default_factory=dict)

    def capped(self, target: View) -> View:
        """Return the view without messages that are not in the earlier view `target`.

        A query with Trigger.AvailableNow reads only what is there when it starts.
        """
        bounds: dict[MessageQueue, QueueBounds] = {}
        for queue in self.bounds.keys() & target.bounds.keys():
            now, end = self.bounds[queue], target.bounds[queue].max_offset
            # Messages up to the target may be deleted since.
            bounds[queue] = QueueBounds(
                now.min_offset, max(now.min_offset, min(now.max_offset, end))
            )
        return replace(self, bounds=bounds, replicas=self.replicas | target.replicas)


class LossKind(Enum):
    """Reasons why a queue does not have the next message of a stream."""

    EXPIRED = "expired"
    """It was deleted before it was read."""
    BEYOND_END = "beyond end"
    """The queue ends before it: the topic was made again, or the broker lost its newest messages.
    """
    RECREATED = "recreated"
    """The topic was made again, as its broker says, and its offsets are those of other messages."""
    VANISHED = "vanished"
    """The broker no longer has the queue."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that a stream should read next, and that are not there.

    Attributes:
        offset: the next offset to read.
        bounds: what the queue holds; None if it vanished.
    """

    queue: MessageQueue
    offset: int
    kind: LossKind
    bounds: QueueBounds | None = None

    @property
    def count(self) -> int | None:
        """The number of lost offsets; None if it is not known."""
        if self.bounds is None or self.kind is not LossKind.EXPIRED:
            return None
        return self.bounds.min_offset - self.offset

    def __str__(self) -> str:
        queue, offset, bounds = name_of(self.queue), self.offset, self.bounds
        if bounds is None:
            return (
                f"{queue} does not exist any more, the next offset to read was {offset}: restore "
                "it, or set failOnDataLoss to false to continue without it"
            )
        held = f"the queue holds offsets {bounds.min_offset} to {bounds.max_offset} (exclusive)"
        remedy = f"set failOnDataLoss to false to continue at offset {bounds.min_offset}"
        if self.kind is LossKind.EXPIRED:
            return (
                f"{queue}: {self.count} messages from offset {offset} on were deleted before they "
                f"were read; {held}: {remedy}, and raise the retention time of the broker"
            )
        if self.kind is LossKind.RECREATED:
            return (
                f"{queue}: the topic was deleted and created again, the next offset to read was "
                f"{offset} of the deleted topic; {held}: {remedy}, or use a new checkpointLocation"
            )
        return (
            f"{queue}: the next offset to read is {offset}, but {held}: the topic was created "
            f"again or the broker lost messages; {remedy}, or use a new checkpointLocation"
        )


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The end of the next batch.

    Attributes:
        end: the end to log; equal to the start if there is nothing to read.
        losses: messages that no batch will have. `end` continues after them, at the first offset
            that the queue holds.
        returned: queues that were gone and are read again, with the first offset of each.
    """

    end: StreamOffset
    losses: tuple[Loss, ...]
    returned: Mapping[MessageQueue, int] = field(default_factory=dict)


@dataclass(slots=True)
class TriggerState:
    """The state of a query between triggers, in memory only.

    Attributes:
        last_batch_ms: time at which the last batch was planned; None before the first one, which
            does not wait for `min_offsets`.
    """

    last_batch_ms: int | None = None


def plan_batch(
    start: StreamOffset,
    view: View,
    limits: TriggerLimits,
    now_ms: int,
    state: TriggerState,
    *,
    starting: Mapping[MessageQueue, int] | None = None,
    deselected: Collection[MessageQueue] = (),
    probe: Probe | None = None,
) -> BatchPlan:
    """Return the plan of the batch after `start`.

    Args:
        start: end of the previous batch, or the initial offset.
        view: the queues now.
        limits: limits of the batch. Leave out `min_offsets` for Trigger.AvailableNow, which would
            never end, and all of them for `ReadAllAvailable`.
        now_ms: monotonic milliseconds, for `max_delay_ms`.
        state: updated when a batch is planned.
        starting: first offsets of the stream, used in batch 0 only. All other queues are new and
            start at their first offset.
        deselected: queues of `start` that the options do not select any more.
        probe: queries that limits need.

    Raises:
        TransportError: a broker does not answer, and no batch was logged yet. Its queues would be
            taken for new ones later.
    """
    if start.is_initial and view.silent:
        broker_name, reason = min(view.silent.items())
        raise TransportError(
            f"broker {broker_name!r} does not answer ({reason}): the first batch of a stream needs "
            "all brokers of its topics; start the query again when the broker is up"
        )
    known = (starting or {}) if start.is_initial else start.until
    found = _find(start, known, view, deselected)
    begins = found.begins
    ends = {queue: max(begin, view.bounds[queue].max_offset) for queue, begin in begins.items()}
    if _must_wait(begins, ends, limits, now_ms, state):
        ends = begins
    else:
        ends = limit_ends(begins, ends, limits, probe)
    if ends != begins:
        state.last_batch_ms = now_ms
    until = {**known, **ends}
    end = StreamOffset(
        until=until,
        begin={q: at for q, at in {**known, **begins}.items() if start.until.get(q) != at},
        topic_begins={**start.topic_begins, **view.topic_begins},
        gone=found.gone,
    )
    # Batch 0 is logged even if it is empty, because it fixes a start such as `latest`. Afterwards
    # Spark takes an offset equal to the start as "no batch".
    has_news = start.is_initial or end.begin or end != replace(start, begin={})
    return BatchPlan(end if has_news else start, tuple(found.losses), found.returned)


@dataclass(slots=True)
class _Findings:
    """The state of the queues at the start of a batch.

    Attributes:
        begins: the first offset to read of each queue that answered.
        losses: the losses before it.
        gone: the queues that are not read.
        returned: as in `BatchPlan`.
    """

    gone: dict[MessageQueue, Absence]
    begins: dict[MessageQueue, int] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    returned: dict[MessageQueue, int] = field(default_factory=dict)


def _find(
    start: StreamOffset,
    known: Mapping[MessageQueue, int],
    view: View,
    deselected: Collection[MessageQueue],
) -> _Findings:
    """Return the first offset to read of each queue, and what is new to report."""
    recreated = {
        topic
        for topic, begin in view.topic_begins.items()
        if begin > start.topic_begins.get(topic, begin)
    }
    deleted = recreated | {broker_topic(q) for q, a in view.vanished.items() if a is Absence.TOPIC}
    vanished = {q: a for q, a in view.vanished.items() if q in known}
    # The first reason stays, but for the one that makes the queue's offset meaningless.
    gone = {**dict.fromkeys(deselected, Absence.OPTION), **vanished, **start.gone}
    found = _Findings({q: Absence.TOPIC if broker_topic(q) in deleted else gone[q] for q in gone})
    for queue in sorted(vanished.keys() - start.gone.keys()):
        found.losses.append(Loss(queue, known[queue], LossKind.VANISHED))
    for queue, bounds in sorted(view.bounds.items()):
        offset = known.get(queue, bounds.min_offset)
        is_lagging = offset > bounds.max_offset and queue.broker_name in view.replicas
        if queue in found.gone:
            if is_lagging:
                continue
            # The loss is reported, whatever the queue holds now.
            is_valid = found.gone.pop(queue) is not Absence.TOPIC
            if not (is_valid and bounds.min_offset <= offset <= bounds.max_offset):
                offset = bounds.min_offset
            found.returned[queue] = offset
        elif not is_lagging:
            kind = _loss_kind(offset, bounds, is_recreated=broker_topic(queue) in recreated)
            if kind is not None and queue in known:
                found.losses.append(Loss(queue, offset, kind, bounds))
                offset = bounds.min_offset
        found.begins[queue] = offset
    return found


def _loss_kind(offset: int, bounds: QueueBounds, *, is_recreated: bool) -> LossKind | None:
    """Return the reason why the queue does not have the message at the offset; None: it may."""
    if is_recreated:
        return LossKind.RECREATED
    if offset < bounds.min_offset:
        return LossKind.EXPIRED
    return LossKind.BEYOND_END if offset > bounds.max_offset else None


def _must_wait(
    begins: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    limits: TriggerLimits,
    now_ms: int,
    state: TriggerState,
) -> bool:
    """Return whether the new messages are too few for a batch."""
    if limits.min_offsets is None or state.last_batch_ms is None:
        return False
    if now_ms - state.last_batch_ms >= limits.max_delay_ms:
        return False
    return sum(ends[queue] - begin for queue, begin in begins.items()) < limits.min_offsets
