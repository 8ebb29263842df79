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

`until` has every queue that the stream ever saw, also those of brokers that do not answer now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kourou.errors import CheckpointError
from kourou.model.queue import MessageQueue
from kourou.spark.planning import QueueRange, name_of

VERSION: Final = 1

OFFSET_MAX: Final = 2**63 - 1

Json: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A position of a stream in all its queues.

    Attributes:
        until: offset of the next message to read, by queue.
        begin: start of the batch that ends here, of queues that begin elsewhere than at the end of
            the previous batch.
        starting: text of the option with the start, in the initial offset; otherwise None.
    """

    until: Mapping[MessageQueue, int] = field(default_factory=dict)
    begin: Mapping[MessageQueue, int] = field(default_factory=dict)
    starting: str | None = None

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
        return {"version": VERSION, "from": _nested(self.begin), "until": _nested(self.until)}

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
        if set(value) != {"version", "from", "until"}:
            raise _unreadable(value, 'expected the keys "version", "from" and "until"')
        begin, until = _flat(value, "from"), _flat(value, "until")
        for queue, start in begin.items():
            if queue not in until or until[queue] < start:
                raise _unreadable(value, f"{name_of(queue)} begins at {start} and ends before")
        return StreamOffset(until, begin)


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
            ranges.append(QueueRange(queue, begin, until))
    return ranges


def _unreadable(value: object, reason: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint has the offset {value!r}: {reason}; restore the checkpoint, or start the "
        "query with a new checkpointLocation"
    )


def _nested(offsets: Mapping[MessageQueue, int]) -> Json:
    """Return topic -> broker -> queue id -> offset, sorted, so that equal offsets are logged so."""
    nested: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        by_broker = nested.setdefault(queue.topic, {})
        by_broker.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return dict(nested)


def _flat(logged: Json, key: str) -> dict[MessageQueue, int]:
    offsets: dict[MessageQueue, int] = {}
    for topic, by_broker in _items(logged, logged[key]):
        for broker_name, by_id in _items(logged, by_broker):
            for queue_id, offset in _items(logged, by_id):
                is_id = queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= 9
                # A bool is an int, but no offset.
                if not is_id or type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                    raise _unreadable(
                        logged, f"{queue_id!r}: {offset!r} is not a queue id and its offset"
                    )
                offsets[MessageQueue(topic, broker_name, int(queue_id))] = offset
    return offsets


def _items(logged: Json, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise _unreadable(logged, f"{value!r} is not an object")
    return list(value.items())
