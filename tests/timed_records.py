"""Scheduled messages and their deliveries, as a log has them."""

from __future__ import annotations

from collections import Counter

from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.store.log.log_walk import walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.file_sizes import find_sizes, log_files
from kourou.testing.disk import SimDisk


def timed_records(disk: SimDisk, topic: str) -> tuple[Counter[bytes], dict[bytes, list[int]]]:
    """Return how often messages were sent, and the store times of the delivered ones, by body.

    A producer may have sent one again after a failover, when it was due already.
    """
    sent, delivered = Counter[bytes](), dict[bytes, list[int]]()
    files, segment_bytes = log_files(disk, COMMITLOG), find_sizes(disk).segment_bytes
    for piece in walk_log(disk, files, segment_bytes):
        header = piece.header
        if header is None:
            continue
        body = bytes(header.body(piece.buffer))
        properties = decode_properties(header.properties(piece.buffer))
        if header.topic == topic:
            delivered.setdefault(body, []).append(header.store_at_ms)
            sent[body] += names.TIMER_DEQUEUE_MS not in properties
        elif header.topic == TIMER_TOPIC and properties[names.REAL_TOPIC] == topic:
            is_first = names.TIMER_ROLL_TIMES not in properties
            sent[body] += is_first and names.TIMER_DEL_UNIQKEY not in properties
    return sent, delivered
