"""A simulated Spark that is killed at any step reads each message of a changing cluster once.

Spark logs the end of a batch, runs it, commits it. After a restart it runs the last logged batch
again if it was not committed. The sink replaces the rows of a batch that runs twice.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kourou.errors import TransportError
from kourou.model.queue import MessageQueue
from kourou.spark.limits import Sample, TriggerLimits
from kourou.spark.planning import BrokerTopic, QueueBounds, broker_topic, pack_ranges
from kourou.spark.stream_offsets import Absence, StreamOffset, ranges_of
from kourou.spark.stream_planning import Loss, LossKind, TriggerState, View, plan_batch

QUEUES = [MessageQueue("t", broker, number) for broker in "ab" for number in range(3)]
RECORD_BYTES = 100


@dataclass(frozen=True)
class Message:
    """A message; no two have the same time."""

    queue: MessageQueue
    offset: int
    time_ms: int


@dataclass
class Log:
    """One queue. `is_loss_unseen`: it was truncated, and no trigger has looked at it since."""

    first: int = 0
    messages: list[Message] = field(default_factory=list)
    is_there: bool = True
    is_loss_unseen: bool = False

    @property
    def end(self) -> int:
        return self.first + len(self.messages)


class State(Enum):
    """States of a broker: up, in the route without answering, not in the route."""

    UP = "up"
    SILENT = "silent"
    ABSENT = "absent"


class Cluster:
    """Queues on two brokers; the probe of the planner."""

    def __init__(self) -> None:
        self.time_ms = 0
        self.logs: dict[MessageQueue, Log] = {}
        self.state = dict.fromkeys("ab", State.UP)
        self.expired: set[Message] = set()
        self.topic_begins: dict[BrokerTopic, int] = dict.fromkeys((("t", "a"), ("t", "b")), 0)

    def is_up(self, queue: MessageQueue) -> bool:
        return self.state[queue.broker_name] is State.UP

    def view(self) -> View:
        up = {queue: log for queue, log in self.logs.items() if self.is_up(queue)}
        return View(
            {q: QueueBounds(log.first, log.end) for q, log in up.items() if log.is_there},
            vanished={q: Absence.QUEUE for q, log in up.items() if not log.is_there},
            silent={name: "no answer" for name, s in self.state.items() if s is State.SILENT},
            topic_begins={
                topic: begin
                for topic, begin in self.topic_begins.items()
                if self.state[topic[1]] is State.UP
            },
        )

    def append(self, queue: MessageQueue, count: int) -> None:
        log = self.logs[queue]
        for _ in range(count):
            self.time_ms += 7
            log.messages.append(Message(queue, log.end, self.time_ms))

    def samples(self, offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, Sample]:
        return {
            queue: Sample(log.messages[offset - log.first].time_ms, RECORD_BYTES)
            for queue, offset in offsets.items()
            if (log := self.logs[queue]).first <= offset < log.end
        }

    def offsets_at(
        self, queues: Sequence[MessageQueue], time_ms: int
    ) -> Mapping[MessageQueue, int]:
        logs = {queue: self.logs[queue] for queue in queues}
        return {
            queue: log.first + bisect_left(log.messages, time_ms, key=lambda m: m.time_ms)
            for queue, log in logs.items()
        }


class Restarts(RuleBasedStateMachine):
    """Cluster and query. Rules change the cluster, or let the query run and die at a step."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.logged: list[str] = []  # the checkpoint: end of each batch
        self.committed = 0  # number of committed batches
        self.rows: dict[int, list[Message]] = {}  # the sink, by batch
        self.losses: list[Loss] = []  # of logged batches
        self.reset: set[MessageQueue] = set()  # queues that were read again from their first offset
        self.gone: set[MessageQueue] = set()  # vanished queues whose loss was logged
        self.made_again: set[MessageQueue] = set()  # with their topic, since a loss or a return
        self.missed: set[Message] = set()  # expired between the plan and the read
        self.begins: dict[MessageQueue, int] = {}  # first offset of each queue ever read
        self.state = TriggerState()
        self.limits = TriggerLimits()

    @initialize(
        is_latest=st.booleans(),
        can_reset=st.booleans(),
        silent=st.sampled_from(["", "", "a"]),
        queues=st.sets(st.sampled_from(QUEUES), min_size=1),
        count=st.integers(0, 5),
    )
    def create(
        self, is_latest: bool, can_reset: bool, silent: str, queues: set[MessageQueue], count: int
    ) -> None:
        self.is_latest = is_latest
        self.can_reset = can_reset  # without resets, more examples check the other losses
        if silent:
            self.cluster.state[silent] = State.SILENT
        for queue in sorted(queues):
            self.cluster.logs[queue] = Log()
            self.cluster.append(queue, count)

    # The cluster

    def log_of(self, index: int) -> tuple[MessageQueue, Log]:
        queues = sorted(self.cluster.logs)
        queue = queues[index % len(queues)]
        return queue, self.cluster.logs[queue]

    @rule(index=st.integers(0, 5), count=st.integers(1, 30))
    def append(self, index: int, count: int) -> None:
        queue, log = self.log_of(index)
        # A truncated queue that is longer than before, when it is next looked at, shows no loss.
        if self.cluster.is_up(queue) and log.is_there and not log.is_loss_unseen:
            self.cluster.append(queue, count)

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(0, 9))
    def add_queue(self, queue: MessageQueue, count: int) -> None:
        if queue not in self.cluster.logs and self.cluster.is_up(queue):
            self.cluster.logs[queue] = Log()
            self.cluster.append(queue, count)

    @rule(index=st.integers(0, 5), count=st.integers(1, 20))
    def expire(self, index: int, count: int) -> None:
        _, log = self.log_of(index)
        self.cluster.expired.update(log.messages[:count])
        log.first += len(log.messages[:count])
        del log.messages[:count]

    @rule(index=st.integers(0, 5), count=st.integers(1, 9))
    def truncate(self, index: int, count: int) -> None:
        _, log = self.log_of(index)
        if log.messages and self.can_reset:
            del log.messages[-count:]
            log.is_loss_unseen = True

    @rule(index=st.integers(0, 5), count=st.integers(0, 60), are_there=st.booleans())
    def make_topic_again(self, index: int, count: int, are_there: bool) -> None:
        """Delete a topic of a broker, and create it with all queues or without the vanished."""
        queue, _ = self.log_of(index)
        if not self.can_reset:
            return
        topic = broker_topic(queue)
        self.cluster.topic_begins[topic] += 1
        for again in [queue for queue in self.cluster.logs if broker_topic(queue) == topic]:
            log = Log(is_there=are_there or self.cluster.logs[again].is_there)
            self.cluster.logs[again] = log
            if log.is_there:
                self.cluster.append(again, count)
            # The stream sees that the topic is another one, and not what the former one held.
            self.cluster.expired -= {m for m in self.cluster.expired if m.queue == again}
            self.made_again.add(again)
            if again in self.begins:
                self.begins[again] = 0

    @rule(index=st.integers(0, 5), is_there=st.booleans())
    def change_queue_count(self, index: int, is_there: bool) -> None:
        _, log = self.log_of(index)
        log.is_there = is_there or not self.can_reset

    @rule(name=st.sampled_from("ab"), state=st.sampled_from([State.UP, *State]))
    def change_broker(self, name: str, state: State) -> None:
        self.cluster.state[name] = state

    # The query

    @rule(
        max_offsets=st.none() | st.integers(1, 20),
        max_bytes=st.none() | st.integers(1, 2_000),
        min_offsets=st.none() | st.integers(1, 10),
        max_time_span_ms=st.none() | st.integers(1, 200),
    )
    def change_limits(self, **limits: int | None) -> None:
        self.limits = TriggerLimits(max_delay_ms=50, **limits)

    @rule(death=st.sampled_from(["", "", "", "planned", "logged", "read"]))
    def trigger(self, death: str) -> None:
        """Run one batch; `death` names the step after which the query is killed."""
        if self.run_batch(self.cluster.view(), self.limits, death) is None or death:
            self.restart()

    @rule()
    def restart(self) -> None:
        self.state = TriggerState()
        self.recover()

    @rule(count=st.integers(0, 3))
    def run_available_now(self, count: int) -> None:
        """Read what is there now, while `count` messages a batch arrive."""
        self.state = TriggerState()
        target = self.cluster.view()
        if not self.recover():
            return
        for _ in range(sum(len(log.messages) for log in self.cluster.logs.values()) + 20):
            limits = TriggerLimits(max_offsets=self.limits.max_offsets)
            planned = self.run_batch(self.cluster.view().capped(target), limits)
            if not planned:
                break
            self.append(0, count)
        else:
            raise AssertionError("does not end")
        if planned is None or not self.logged:
            return
        until = StreamOffset.from_json(json.loads(self.logged[-1])).until
        assert all(
            until[queue] >= min(target.bounds[queue].max_offset, bounds.max_offset)
            for queue, bounds in self.cluster.view().bounds.items()
            if queue in target.bounds
        )

    def recover(self) -> bool:
        """Run the last batch again if it is logged and not committed; return whether that ended."""
        if len(self.logged) > self.committed:
            return self.run_logged()
        return True

    def run_batch(self, view: View, limits: TriggerLimits, death: str = "") -> bool | None:
        """Plan, log, read and commit; return whether there was a batch, None if the query ended."""
        if not self.recover():
            return None
        start = self.offset(len(self.logged) - 1)
        starting = {q: b.max_offset for q, b in view.bounds.items()} if self.is_latest else None
        self.cluster.time_ms += 1
        try:
            planned = plan_batch(
                start, view, limits, self.cluster.time_ms, self.state,
                starting=starting, probe=self.cluster,
            )  # fmt: skip
        except TransportError:
            assert start.is_initial
            assert view.silent
            return None
        assert set(planned.end.until) >= set(start.until) | (set(view.vanished) & set(start.until))
        assert not planned.end.gone.keys() & view.bounds.keys()
        if death == "planned":
            return None
        has_batch = json.dumps(planned.end.to_json()) != json.dumps(start.to_json())
        if has_batch:
            self.log(start, planned.end, planned.losses, limits)
            self.reset |= {q for q, at in planned.returned.items() if at != start.until[q]}
            # Neither does a loss, or a return, name offsets of a topic that the stream did not see.
            reported = {loss.queue for loss in planned.losses} | planned.returned.keys()
            self.reset |= self.made_again & reported
            self.made_again -= reported
            self.gone -= planned.returned.keys()
        else:
            assert not planned.losses
            assert not planned.returned
        self.note_first_offsets(view, is_first=start.is_initial)
        if death == "logged":
            return None
        if not has_batch:
            return False
        is_complete = self.run_logged(death == "read")
        # Nothing has changed since the plan.
        rows = sum(map(len, ranges_of(start, planned.end)))
        assert len(self.rows[len(self.logged) - 1]) == rows
        return is_complete or None

    def note_first_offsets(self, view: View, *, is_first: bool) -> None:
        """Note the offset at which the stream must begin in each queue that it sees now."""
        for queue, log in self.cluster.logs.items():
            if queue in view.bounds:
                log.is_loss_unseen = False
            # The first batch counts also for a queue whose broker does not answer.
            is_silent = queue.broker_name in view.silent and log.is_there
            if queue in view.bounds or (is_first and is_silent):
                is_at_end = is_first and self.is_latest
                self.begins.setdefault(queue, log.end if is_at_end else log.first)

    def offset(self, batch: int) -> StreamOffset:
        """Return the logged end of the batch, or what `initialOffset` returns at each call."""
        if batch < 0:
            return StreamOffset.initial("latest" if self.is_latest else "earliest")
        return StreamOffset.from_json(json.loads(self.logged[batch]))

    def log(
        self,
        start: StreamOffset,
        end: StreamOffset,
        losses: Sequence[Loss],
        limits: TriggerLimits,
    ) -> None:
        read = sum(map(len, ranges_of(start, end)))
        assert limits.max_offsets is None or read <= limits.max_offsets
        assert limits.max_bytes is None or read <= max(1, limits.max_bytes // RECORD_BYTES)
        self.logged.append(json.dumps(end.to_json()))
        self.losses += losses
        vanished = [loss.queue for loss in losses if loss.kind is LossKind.VANISHED]
        assert not self.gone & {loss.queue for loss in losses}, "reported twice"
        self.gone.update(vanished)
        kinds = (LossKind.BEYOND_END, LossKind.RECREATED)
        self.reset |= {loss.queue for loss in losses if loss.kind in kinds}

    def run_logged(self, is_killed: bool = False) -> bool:
        """Read the last logged batch; return whether it was committed."""
        batch = len(self.logged) - 1
        ranges = ranges_of(self.offset(batch - 1), self.offset(batch))
        if not all(self.cluster.is_up(piece.queue) for piece in ranges):
            return False
        rows: list[Message] = []
        for group in pack_ranges(ranges, 3, tasks_min=2):
            for piece in group:
                log = self.cluster.logs[piece.queue]
                is_same = piece.topic_begin == self.cluster.topic_begins[broker_topic(piece.queue)]
                if log.is_there and is_same:
                    rows += [m for m in log.messages if piece.start <= m.offset < piece.until]
                self.missed |= {
                    m
                    for m in self.cluster.expired
                    if m.queue == piece.queue and piece.start <= m.offset < piece.until
                }
        self.rows[batch] = rows
        if is_killed:
            return False
        self.committed += 1
        return True

    # What must hold in the end

    def teardown(self) -> None:
        if not self.cluster.logs:
            return
        self.cluster.state = dict.fromkeys("ab", State.UP)
        self.limits = TriggerLimits()
        self.restart()
        while self.run_batch(self.cluster.view(), self.limits):
            pass
        counts = Counter(message for rows in self.rows.values() for message in rows)
        for message, count in counts.items():
            is_repeatable = message.queue in self.reset
            assert count == 1 or is_repeatable, message
            assert message.offset >= self.begins[message.queue] or is_repeatable, message
        for queue, log in self.cluster.logs.items():
            for message in log.messages if log.is_there else []:
                is_before_start = message.offset < self.begins[queue]
                assert counts[message] or is_before_start, message
        for message in self.cluster.expired:
            assert counts[message] or message in self.missed or self.is_reported(message), message

    def is_reported(self, message: Message) -> bool:
        """Return whether a loss includes the message, or the stream never included it."""
        queue, offset = message.queue, message.offset
        if queue in self.reset or queue not in self.begins or offset < self.begins[queue]:
            return True
        return any(
            loss.queue == queue
            and loss.offset <= offset
            and (loss.bounds is None or offset < loss.bounds.min_offset)
            for loss in self.losses
        )


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
