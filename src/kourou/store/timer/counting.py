"""How many messages wait for each topic, counted in the timer's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kourou.errors import CorruptRecordError
from kourou.store.timer.layouts import KIND_DELETE
from kourou.store.timer.timer_files import TimerFiles

COUNTED_MAX: Final = 200_000
"""Messages above which a start does not count anew: that would take longer than half a second."""

TopicOf = Callable[[int], str | None]
"""Tells the topic that the message of a timer record is for, by its byte of the commit log."""


def count_by_topic(files: TimerFiles, topic_of: TopicOf) -> dict[str, int] | None:
    """Return how many messages wait for each topic, those that were taken back too.

    None if more than `COUNTED_MAX` wait. Units name topics by their hashes: topics of one hash are
    counted as one.

    Raises:
        OSError: the timer log cannot be read.
    """
    if files.wheel.count > COUNTED_MAX:
        return None
    names: dict[int, str | None] = {}
    counts: Counter[str] = Counter()
    for slot in files.wheel.slots():
        with suppress(CorruptRecordError):  # named when its time comes
            for _, unit in files.log.chain(slot.last):
                if unit.kind & KIND_DELETE:
                    continue
                name = names.get(unit.topic_hash)
                if name is None:
                    name = names[unit.topic_hash] = topic_of(unit.physical_offset)
                    if not unit.topic_hash:
                        del names[0]  # it was moved: its hash is not in the unit
                if name is not None:
                    counts[name] += 1
    return dict(counts)
