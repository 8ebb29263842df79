"""Which timer messages a broker had delivered before it was killed.

The check file is older than the last deliveries. They are in the commit log: records that bear the
time at which they were taken out of the wheel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kourou.disk import Disk
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.store.log.marked_records import marked_records

DeliveryKey = tuple[str, str, str, str]
"""Topic, unique id, second that it was due; of a message that was rolled, how often it was, and
whether it takes another back: it has that one's unique id."""


def delivery_key(topic: str, properties: Mapping[str, str]) -> DeliveryKey:
    """Return what tells a delivery from others; equal for two sends of one message."""
    rolled = ""
    if topic == TIMER_TOPIC:
        rolled = properties.get(names.TIMER_ROLL_TIMES, "")
        if names.TIMER_DEL_UNIQKEY in properties:
            rolled += "-"
    unique_id = properties.get(names.UNIQ_KEY, "")
    return topic, unique_id, properties.get(names.TIMER_OUT_MS, ""), rolled


def delivered_since(disk: Disk, segment_bytes: int, start: int) -> Counter[DeliveryKey]:
    """Return what the commit log holds of deliveries from byte `start` on; on any thread.

    Raises:
        OSError: the log cannot be read.
    """
    return Counter(
        delivery_key(header.topic, decode_properties(text))
        for header, text in marked_records(disk, segment_bytes, start, names.TIMER_DEQUEUE_MS)
    )
