"""Progress of a master's timer that a slave needs to keep its own timer files; beside request 60.

The answer to GET_TIMER_CHECK_POINT has the time and the queue offset. A Kourou master adds a field
with the rest, unless its files have messages in slots that a slave would not choose.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kourou.errors import MalformedHeaderError
from kourou.protocol.brokers import TimerCheckPoint

PROGRESS_FIELD: Final = "kourouTimerProgress"
"""Field of the answer to 60: scan_from, covered_at and window_ms, separated by blanks."""
_TEXT: Final = re.compile(r"([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18})", re.ASCII)


class ReplicaProgress(NamedTuple):
    """Progress of a timer, which is valid for each log that agrees up to `covered_at`.

    Attributes:
        read_at_ms: messages in slots before this time were delivered, rolled or left out,
        queue_offset: of the messages of the timer topic before this offset.
        scan_from: log position before all deliveries from slots from `read_at_ms` on.
        covered_at: log position after these messages, and after the deliveries of done slots.
        window_ms: a message that waits this long, or longer, is rolled.
    """

    read_at_ms: int
    queue_offset: int
    scan_from: int
    covered_at: int
    window_ms: int


def encode_progress(progress: ReplicaProgress) -> str:
    """Return the text of the field."""
    return f"{progress.scan_from} {progress.covered_at} {progress.window_ms}"


def decode_progress(check_point: TimerCheckPoint, text: str) -> ReplicaProgress:
    """Return the progress of an answer.

    Args:
        check_point: its body.
        text: of the field.

    Raises:
        MalformedHeaderError: the text is not such a field.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise MalformedHeaderError(f"{PROGRESS_FIELD} is {text[:80]!r}, not three numbers")
    scan_from, covered_at, window_ms = map(int, found.groups())
    at_ms, offset = check_point.last_read_time_ms, check_point.last_timer_queue_offset
    return ReplicaProgress(at_ms, offset, scan_from, covered_at, window_ms)
