"""Deliveries and acknowledgements of pop consumers, as their processes report them. Pure.

Each time that a popped message becomes visible again, the broker stores a copy of it in the retry
topic. So the deliveries of one message have an order that needs no clock: the stored message first,
then its copies by their offsets.

An acknowledgement is in time if its answer arrived, by the broker's clock, before the message
became visible again. After one in time, no copy may be delivered. There is one exception, which a
crash makes unavoidable: while the invisible time of the message was being changed, the broker or
the member was killed, or the broker was silent for so long that the client gave up the connection.
The broker may have stored the new checkpoint, and the member does not have its receipt handle: it
acknowledges the old one, or that of a repeated change, which the broker answers without effect as
Java does. Then the new checkpoint brings the message back once more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from kourou.protocol.popping.topic_names import NOT_RETRY
from kourou.remoting.connection import SILENCE_S


class Popped(msgspec.Struct, frozen=True, array_like=True, tag="popped"):
    """A delivery.

    Attributes:
        number: of the delivery, within its member.
        key: of the message.
        kind: kind of the topic that holds the record.
        queue_id, offset: position of the record in that topic.
        reconsume_times: as received.
        asked_ms, came_ms: when the member began the receive, and when it had the message.
        popped_ms, visible_at_ms: time of the pop, and end of its invisible time, by the broker's
            clock.
    """

    number: int
    key: str
    kind: str
    queue_id: int
    offset: int
    reconsume_times: int
    asked_ms: int
    came_ms: int
    popped_ms: int
    visible_at_ms: int


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """A member is about to acknowledge a delivery, or to change its invisible time."""

    number: int
    is_ack: bool
    at_ms: int


class Answered(msgspec.Struct, frozen=True, array_like=True, tag="answered"):
    """The broker has answered the last request about a delivery with success.

    Attributes:
        visible_at_ms: end of the invisible time from now on; not used after an acknowledgement.
    """

    number: int
    at_ms: int
    visible_at_ms: int


PopEvent = Popped | Begun | Answered
decode_event: Final = msgspec.json.Decoder(PopEvent).decode
encode_event: Final = msgspec.json.Encoder().encode


class BrokerHistory(NamedTuple):
    """The broker's clock and kills.

    Attributes:
        ahead_ms: returns by how much the clock was ahead, at most, from one time to another.
        kills: when the broker was being killed: first and last possible time in ms of each kill.
        is_clock_right: whether the clock was never changed.
    """

    ahead_ms: Callable[[int, int], int]
    kills: list[tuple[int, int]]
    is_clock_right: bool

    def was_killed(self, from_ms: int, until_ms: int) -> bool:
        return any(first <= until_ms and last >= from_ms for first, last in self.kills)


@dataclass(slots=True)
class Step:
    """One request of a member about a delivery.

    Attributes:
        answered: its successful answer, if that has arrived.
    """

    begun: Begun
    answered: Answered | None = None


@dataclass(slots=True)
class Delivery:
    """One delivery, and the requests about it in the order in which they were made."""

    popped: Popped
    steps: list[Step] = field(default_factory=list)

    @property
    def position(self) -> tuple[bool, int, int]:
        """Position in the order of the deliveries of one message."""
        return self.popped.kind != NOT_RETRY, self.popped.offset, self.popped.queue_id

    @property
    def is_acked(self) -> bool:
        """Whether an acknowledgement was answered, in time or not."""
        return any(step.begun.is_ack and step.answered for step in self.steps)

    def end(self, history: BrokerHistory) -> DeliveryEnd:
        """Return the state that the requests have brought about."""
        popped = self.popped
        visible_at_ms, is_late, is_unclear, is_acked = popped.visible_at_ms, False, False, False
        for step in self.steps:
            answered = step.answered
            if answered is None:
                is_unclear |= not step.begun.is_ack
                continue
            broker_ms = answered.at_ms + history.ahead_ms(popped.asked_ms, answered.at_ms)
            is_late |= broker_ms > visible_at_ms
            if step.begun.is_ack:
                is_acked = True
                continue
            is_unclear |= answered.at_ms - step.begun.at_ms >= SILENCE_S * 1_000
            is_unclear |= history.was_killed(step.begun.at_ms, answered.at_ms)
            if not is_late:
                visible_at_ms = answered.visible_at_ms
        return DeliveryEnd(visible_at_ms, is_acked, is_late, is_unclear)


class DeliveryEnd(NamedTuple):
    """State of a delivery after its requests.

    Attributes:
        visible_at_ms: end of its invisible time, by the broker's clock.
        is_acked: an acknowledgement was answered with success.
        is_late: the broker answered a request when the message was visible again.
        is_unclear: a change of the invisible time may have been made without its answer: the broker
            or the member was killed during it, or the broker was silent.
    """

    visible_at_ms: int
    is_acked: bool
    is_late: bool
    is_unclear: bool


@dataclass
class PopFindings:
    """Results of judging the deliveries of one group.

    Attributes:
        again: acknowledged in time, and delivered again without need; or a record popped twice.
        early: delivered again before the end of the invisible time.
        counts: delivered again with a retry count that had not grown.
        unavoidable: acknowledged, and delivered again because a kill made that unavoidable.
        late: acknowledged too late, and delivered again.
    """

    again: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    unavoidable: int = 0
    late: int = 0


class PopLedger:
    """The deliveries to one group.

    Attributes:
        deliveries: by key, in the order in which they were reported.
        acked: keys of messages with an answered acknowledgement.
        ack_begun: keys of messages that a member began to acknowledge.
    """

    def __init__(self) -> None:
        self.deliveries: defaultdict[str, list[Delivery]] = defaultdict(list)
        self.acked: set[str] = set()
        self.ack_begun: set[str] = set()
        self._by_number: dict[tuple[str, int], Delivery] = {}

    def note(self, member: str, event: PopEvent) -> str:
        """Record an event of a member; return the key of the message."""
        if isinstance(event, Popped):
            delivery = self._by_number[member, event.number] = Delivery(event)
            self.deliveries[event.key].append(delivery)
            return event.key
        delivery = self._by_number[member, event.number]
        key = delivery.popped.key
        if isinstance(event, Begun):
            delivery.steps.append(Step(event))
            if event.is_ack:
                self.ack_begun.add(key)
        else:
            delivery.steps[-1].answered = event
            if delivery.steps[-1].begun.is_ack:
                self.acked.add(key)
        return key

    def judge(self, history: BrokerHistory, is_single: Callable[[str], bool]) -> PopFindings:
        """Judge all messages of which `is_single` says that the broker stores them once."""
        findings = PopFindings()
        for key, deliveries in self.deliveries.items():
            if is_single(key):
                _judge_message(sorted(deliveries, key=_position), history, findings)
        return findings


def _position(delivery: Delivery) -> tuple[bool, int, int]:
    return delivery.position


def _judge_message(
    deliveries: list[Delivery], history: BrokerHistory, findings: PopFindings
) -> None:
    """Judge the deliveries of one message, in the order of their records."""
    ends = [delivery.end(history) for delivery in deliveries]
    is_unclear = any(end.is_unclear for end in ends)
    judged = zip(deliveries, ends, strict=True)
    for (delivery, end), (later, _) in pairwise(judged):
        text = f"{_text(delivery)} {end}, then {_text(later)}"
        if delivery.position == later.position:
            findings.again.append(f"popped twice: {text}")
        if end.is_acked and not end.is_late:
            if is_unclear:
                findings.unavoidable += 1
            else:
                findings.again.append(text)
        elif end.is_acked:
            findings.late += 1
        if is_unclear:
            continue
        if later.popped.reconsume_times <= delivery.popped.reconsume_times:
            findings.counts.append(text)
        if history.is_clock_right and later.popped.popped_ms < end.visible_at_ms:
            findings.early.append(text)


def _text(delivery: Delivery) -> str:
    steps = "".join(f" {step.begun} -> {step.answered}" for step in delivery.steps)
    return f"{delivery.popped}{steps}"
