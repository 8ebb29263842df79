"""Which timer messages a broker had delivered before it was killed.

The check file is older than the last deliveries. They are in the commit log: records that bear the
time at which they were taken out of the wheel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from kourou.disk import Disk
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.store.log.log_walk import walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.store_sizes import log_files

DeliveryKey = tuple[str, str, str, str]
"""Topic, unique id, second that it was due; of a message that was rolled, how often it was, and
whether it takes another back: it has that one's unique id."""

_DEQUEUED: Final = f"{names.TIMER_DEQUEUE_MS}\x01".encode()


def delivery_key(topic: str, properties: Mapping[str, str]) -> DeliveryKey:
    """Return what tells a delivery from others; equal for two sends of one message."""
    rolled = ""
    if topic == TIMER_TOPIC:
        rolled = properties.get(names.TIMER_ROLL_TIMES, "")
        if names.TIMER_DEL_UNIQKEY in properties:
            rolled += "-"
    unique_id = properties.get(names.UNIQ_KEY, "")
    return topic, unique_id, properties.get(names.TIMER_OUT_MS, ""), rolled


def stored_before(disk: Disk, segment_bytes: int, at_ms: int) -> int:
    """Return a byte of the commit log where a file begins; what lies before is older than a time.

    For a store that nobody noted the place in: Java's. Store times follow a clock that may be set.

    Raises:
        OSError: the log cannot be read.
    """
    files = log_files(disk, COMMITLOG)
    for file in reversed(files):
        first = next(iter(walk_log(disk, [file], segment_bytes)), None)
        if first is not None and first.header is not None and first.header.store_at_ms < at_ms:
            return file.start
    return files[0].start if files else 0


def delivered_since(disk: Disk, segment_bytes: int, start: int) -> Counter[DeliveryKey]:
    """Return what the commit log holds of deliveries from byte `start` on; on any thread.

    Raises:
        OSError: the log cannot be read.
    """
    found: Counter[DeliveryKey] = Counter()
    for piece in walk_log(disk, log_files(disk, COMMITLOG), segment_bytes, start=start):
        header = piece.header
        if header is None:
            continue
        begin = header.properties_start
        text = piece.buffer[begin : begin + header.properties_size]
        if _DEQUEUED in text:
            found[delivery_key(header.topic, decode_properties(text))] += 1
    return found
