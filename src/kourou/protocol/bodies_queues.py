"""JSON of queues, and of maps keyed by queue, for use in other bodies.

A map keyed by queue is written with a bare JSON object as key. `loads` returns such a key as its
JSON text, which is also the form that Java versions before 5.4 may write.

Source: MessageQueue.java, MessageQueueForC.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kourou.model.queue import MessageQueue
from kourou.protocol.fastjson import loads
from kourou.protocol.json_values import Json, as_integer, as_object, get_integer, get_text


def queue_to_json(queue: MessageQueue) -> dict[str, object]:
    """Return the JSON object of a queue."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_from_json(value: object) -> MessageQueue:
    """Return the queue of a JSON object.

    Raises:
        MalformedBodyError: the value is not a JSON object, or a member has the wrong type.
    """
    data = as_object(value, "a queue")
    return MessageQueue(
        get_text(data, "topic"), get_text(data, "brokerName"), get_integer(data, "queueId")
    )


def queues_to_json(queues: Iterable[MessageQueue]) -> list[dict[str, object]]:
    """Return the JSON objects of queues, in their order."""
    return [queue_to_json(queue) for queue in queues]


def items_by_queue(table: Json) -> Iterator[tuple[MessageQueue, object]]:
    """Yield the queues and values of a map keyed by queue.

    Raises:
        MalformedBodyError: a key is not the JSON text of a queue.
    """
    for key, value in table.items():
        yield queue_from_json(loads(key)), value


def offsets_by_queue(value: object, label: str) -> dict[MessageQueue, int]:
    """Return the offsets of a map keyed by queue; `label` names the map in errors.

    Raises:
        MalformedBodyError: the value is not such a map, or an offset is not an integer.
    """
    items = items_by_queue(as_object(value, label))
    return {queue: as_integer(offset, label) for queue, offset in items}
