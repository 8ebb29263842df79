"""Offsets of a stream as Spark logs them in a query's checkpoint. Pure.

Spark logs the end of a batch before it runs the batch, and the range of a batch is that from the
previous end to its own. Batch 0 has no logged start: Spark calls `initialOffset` for it, and again
after a restart. A start such as `latest` would then be a different one. Therefore the initial
offset is a constant:

    {"version": 1, "starting": "latest"}

and the offset at the end of a batch also has the starts that the previous end does not have: those
of all queues in batch 0, later those of new queues and of queues that lost messages:

    {"version": 1, "from": {"flights": {"broker-a": {"3": 0}}},
     "until": {"flights": {"broker-a": {"0": 57, "1": 60, "2": 41, "3": 9}}}}

`until` has every queue that the stream ever saw, also those of brokers that do not answer now, and
those that are gone. Two more members are there if they are not empty:

     "topicBegins": {"flights": {"broker-a": 73400320}},
     "gone": {"flights": {"broker-a": {"4": "queue"}}}

`topicBegins` identifies the topics (`kourou.protocol.offsets.TOPIC_BEGIN_FIELD`): a topic that was
deleted and created again has a higher one. Brokers of RocketMQ have none. `gone` has the queues
whose loss was reported, so that it is reported once, also over restarts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias, TypeGuard

from kourou.decimals import INT_DIGITS, is_decimal
from kourou.errors import CheckpointError
from kourou.model.queue import MessageQueue
from kourou.spark.planning import BrokerTopic, QueueRange, broker_topic, name_of

VERSION: Final = 1

OFFSET_MAX: Final = 2**63 - 1

_KEYS: Final = {"version", "from", "until"}
_OPTIONAL_KEYS: Final = {"topicBegins", "gone"}

Json: TypeAlias = dict[str, object]


class Absence(Enum):
    """Reasons why a stream does not read a queue that it has read."""

    QUEUE = "queue"
    """The topic has fewer queues. If it has more again, the queue has its former messages."""
    TOPIC = "topic"
    """The topic was deleted, and created again perhaps: the queue's offset is meaningless."""
    OPTION = "option"
    """The options of the query do not select it any more."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A position of a stream in all its queues.

    Attributes:
        until: offset of the next message to read, by queue.
        begin: start of the batch that ends here, of queues that begin elsewhere than at the end of
            the previous batch.
        starting: text of the option with the start, in the initial offset; otherwise None.
        topic_begins: identities of the topics on brokers that have some.
        gone: queues of `until` that are not read, and whose loss was reported.
    """

    until: Mapping[MessageQueue, int] = field(default_factory=dict)
    begin: Mapping[MessageQueue, int] = field(default_factory=dict)
    starting: str | None = None
    topic_begins: Mapping[BrokerTopic, int] = field(default_factory=dict)
    gone: Mapping[MessageQueue, Absence] = field(default_factory=dict)

    @staticmethod
    def initial(starting: str) -> StreamOffset:
        """Return the offset before batch 0; `starting` is for readers of the checkpoint only."""
        return StreamOffset(starting=starting)

    @property
    def is_initial(self) -> bool:
        """Whether no batch ended here: each queue begins at `begin` of the next offset."""
        return self.starting is not None

    def to_json(self) -> Json:
        """Return the object to log. Equal offsets have equal texts, which Spark compares."""
        if self.starting is not None:
            return {"version": VERSION, "starting": self.starting}
        logged: Json = {
            "version": VERSION,
            "from": by_name(self.begin),
            "until": by_name(self.until),
        }
        if self.topic_begins:
            begins: dict[str, dict[str, int]] = {}
            for (topic, broker_name), begin in sorted(self.topic_begins.items()):
                begins.setdefault(topic, {})[broker_name] = begin
            logged["topicBegins"] = begins
        if self.gone:
            logged["gone"] = by_name({queue: absence.value for queue, absence in self.gone.items()})
        return logged

    @staticmethod
    def from_json(value: object) -> StreamOffset:
        """Return a logged offset.

        Raises:
            CheckpointError: the object has another version, or not the form above.
        """
        if not isinstance(value, dict) or "version" not in value:
            raise _unreadable(value, "it is not an offset of the source rocketmq")
        if value["version"] != VERSION or isinstance(value["version"], bool):
            raise CheckpointError(
                f"the checkpoint has offsets of version {value['version']!r}, this Kourou reads "
                f"version {VERSION}: run the query with the Kourou that wrote them, or start it "
                "with a new checkpointLocation"
            )
        if set(value) == {"version", "starting"} and isinstance(value["starting"], str):
            return StreamOffset.initial(value["starting"])
        if set(value) - _OPTIONAL_KEYS != _KEYS:
            raise _unreadable(value, 'expected the keys "version", "from" and "until"')
        begin, until = _offsets(value, "from"), _offsets(value, "until")
        for queue, start in begin.items():
            if queue not in until or until[queue] < start:
                raise _unreadable(value, f"{name_of(queue)} begins at {start} and ends before")
        gone = _gone(value)
        if not gone.keys() <= until.keys():
            raise _unreadable(value, '"gone" has queues that "until" does not have')
        return StreamOffset(until, begin, topic_begins=_topic_begins(value), gone=gone)


def ranges_of(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """Return the non-empty ranges of the batch that Spark logged with these offsets, by queue.

    Raises:
        CheckpointError: the offsets are not those of one batch.
    """
    ranges: list[QueueRange] = []
    for queue, until in sorted(end.until.items()):
        begin = end.begin.get(queue, start.until.get(queue))
        if begin is None or begin > until:
            raise _unreadable(
                end.to_json(),
                f"{name_of(queue)} ends at {until}, but the batch begins at {begin}",
            )
        if begin < until:
            topic_begin = end.topic_begins.get(broker_topic(queue))
            ranges.append(QueueRange(queue, begin, until, topic_begin))
    return ranges


def _unreadable(value: object, reason: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint has the offset {value!r}: {reason}; restore the checkpoint, or start the "
        "query with a new checkpointLocation"
    )


def by_name(values: Mapping[MessageQueue, int | str]) -> Json:
    """Return topic -> broker -> queue id -> value, sorted, so that equal offsets are logged so."""
    nested: dict[str, dict[str, dict[str, int | str]]] = {}
    for queue, value in sorted(values.items()):
        by_broker = nested.setdefault(queue.topic, {})
        by_broker.setdefault(queue.broker_name, {})[str(queue.queue_id)] = value
    return dict(nested)


def _offsets(logged: Json, key: str) -> dict[MessageQueue, int]:
    offsets: dict[MessageQueue, int] = {}
    for queue, offset in _by_queue(logged, key):
        if not _is_offset(offset):
            raise _unreadable(logged, f"{offset!r} of {name_of(queue)} is not an offset")
        offsets[queue] = offset
    return offsets


def _topic_begins(logged: Json) -> dict[BrokerTopic, int]:
    begins: dict[BrokerTopic, int] = {}
    for topic, by_broker in _items(logged, logged.get("topicBegins", {})):
        for broker_name, begin in _items(logged, by_broker):
            if not _is_offset(begin):
                raise _unreadable(logged, f"{begin!r} of {topic!r} on {broker_name!r} is no begin")
            begins[topic, broker_name] = begin
    return begins


def _gone(logged: Json) -> dict[MessageQueue, Absence]:
    values = {absence.value: absence for absence in Absence}
    gone: dict[MessageQueue, Absence] = {}
    for queue, value in _by_queue(logged, "gone"):
        if not isinstance(value, str) or value not in values:
            raise _unreadable(logged, f"{value!r} of {name_of(queue)} is no reason")
        gone[queue] = values[value]
    return gone


def _is_offset(value: object) -> TypeGuard[int]:
    # A bool is an int, but no offset.
    return type(value) is int and 0 <= value <= OFFSET_MAX


def _by_queue(logged: Json, key: str) -> Iterator[tuple[MessageQueue, object]]:
    for topic, by_broker in _items(logged, logged.get(key, {})):
        for broker_name, by_id in _items(logged, by_broker):
            for queue_id, value in _items(logged, by_id):
                if not is_decimal(queue_id, INT_DIGITS):
                    raise _unreadable(logged, f"{queue_id!r}: {value!r} has no queue id")
                yield MessageQueue(topic, broker_name, int(queue_id)), value


def _items(logged: Json, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise _unreadable(logged, f"{value!r} is not an object")
    return list(value.items())
