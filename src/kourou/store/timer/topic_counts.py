"""Counts the scheduled messages of each topic in the timer's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kourou.errors import CorruptRecordError
from kourou.store.timer.layouts import KIND_DELETE
from kourou.store.timer.timer_files import TimerFiles

COUNTED_MAX: Final = 200_000
"""Messages above which a start does not count: it would take longer than half a second."""

TopicOf = Callable[[int], str | None]
"""Returns the target topic of the timer record at a commit log position; None if unknown."""


def count_by_topic(files: TimerFiles, topic_of: TopicOf) -> dict[str, int] | None:
    """Return the number of scheduled messages by topic, including recalled ones.

    None if there are more than `COUNTED_MAX`. Units have only the hash of the topic: topics with
    equal hashes are counted as one.

    Raises:
        OSError: the timer log cannot be read.
    """
    if files.wheel.count > COUNTED_MAX:
        return None
    names: dict[int, str | None] = {}
    counts: Counter[str] = Counter()
    for slot in files.wheel.slots():
        with suppress(CorruptRecordError):  # reported when the slot is due
            for _, unit in files.log.chain(slot.last):
                if unit.kind & KIND_DELETE:
                    continue
                name = names.get(unit.topic_hash)
                if name is None:
                    name = names[unit.topic_hash] = topic_of(unit.physical_offset)
                    if not unit.topic_hash:
                        del names[0]  # hash 0 means absent: other topics' units have it too
                if name is not None:
                    counts[name] += 1
    return dict(counts)
