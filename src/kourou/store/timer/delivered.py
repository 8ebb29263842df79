"""Finds the scheduled messages that a broker had delivered before it was killed.

The check file is older than the last deliveries. These are found in the commit log: their records
have a property with the time at which they were taken from the wheel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kourou.disk import Disk
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.record.layout import RecordHeader
from kourou.store.log.property_search import is_set_aside, records_with_property

DeliveryKey = tuple[str, str, str, str]
"""Topic, unique id, due second; for a rolled message also its number of rolls and whether it is a
recall, which has the unique id of the recalled message."""


def delivery_key(topic: str, properties: Mapping[str, str]) -> DeliveryKey:
    """Return the key of a delivery; two sends of one message have equal keys."""
    rolled = ""
    if topic == TIMER_TOPIC:
        rolled = properties.get(names.TIMER_ROLL_TIMES, "")
        if names.TIMER_DEL_UNIQKEY in properties:
            rolled += "-"
    unique_id = properties.get(names.UNIQ_KEY, "")
    return topic, unique_id, properties.get(names.TIMER_OUT_MS, ""), rolled


def delivered_since(
    disk: Disk, segment_bytes: int, start: int, end: int
) -> tuple[Counter[DeliveryKey], int]:
    """Return the deliveries in the commit log between two positions; runs on any thread.

    Returns:
        The number of deliveries by key, and the store time of the last one, by the clock of that
        time: none of them was due later. It is in the future if that clock was ahead.

    Raises:
        OSError: the log cannot be read.
    """
    found: Counter[DeliveryKey] = Counter()
    until_ms = 0
    mark = names.TIMER_DEQUEUE_MS
    for header, text in records_with_property(disk, segment_bytes, start, mark, end=end):
        properties = decode_properties(text)
        found[delivery_key(target_topic(header, properties), properties)] += 1
        until_ms = max(until_ms, header.store_at_ms)
    return found, until_ms


def target_topic(header: RecordHeader, properties: Mapping[str, str]) -> str:
    """Return the target topic of a record that was taken from the wheel."""
    return properties.get(names.REAL_TOPIC, "") if is_set_aside(header) else header.topic
