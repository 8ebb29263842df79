"""One call that changes a file fails under a broker: what it may acknowledge, and must say.

Times are those of the loop that sends, in seconds.
"""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import KourouError
from kourou.protocol.codes import ResponseCode
from tests.torture.asking import Asking

FALSE: Final = "false acknowledgements"
LATE: Final = "not read-only within 100 ms"
TAKEN: Final = "sends not refused within 100 ms"
RETRIED: Final = "acknowledged after a failed sync"
SILENT: Final = "read-only without a reason in health"
STUCK: Final = "not taking messages again after a full disk"
SLOW: Final = "taking messages again later than after 5 s"
DAMAGE: Final = "findings of store check"
BROKEN: Final = "starts that failed"

VITAL: Final = ("commitlog", "consumequeue", "checkpoint")
QUEUES: Final = 3
SENDERS: Final = 4
READ_ONLY_WITHIN_S: Final = 0.1
RESUME_WITHIN_S: Final = 5.0


@dataclass
class Hit:
    """The call that failed.

    Attributes:
        operation, name: of the call; empty until it came.
        at_s: loop time.
    """

    operation: str = ""
    name: str = ""
    at_s: float = 0.0

    @property
    def is_vital(self) -> bool:
        """Whether the store cannot go on as if nothing had happened, if that is no full disk."""
        return self.name.startswith(VITAL) and self.operation in ("write", "sync", "sync_directory")

    @property
    def is_log_sync(self) -> bool:
        return self.name.startswith("commitlog") and self.operation.startswith("sync")


@dataclass
class Course:
    """What was seen: acknowledged bodies by place, when, and when the broker said it is in trouble.

    Attributes:
        acknowledged_at_s: when the send of each began, and when it was acknowledged.
        refused_at_s: when sends were refused.
        pause_s: of each sender, after an acknowledgement.
    """

    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acknowledged_at_s: list[tuple[float, float]] = field(default_factory=list)
    refused_at_s: list[float] = field(default_factory=list)
    pause_s: float = 0.002
    trouble_at_s: float | None = None
    troubles: list[str] = field(default_factory=list)

    def refused_after_s(self, hit: Hit) -> float | None:
        """Return how long after the call a send was refused for the first time; None if never."""
        after = [at_s - hit.at_s for at_s in self.refused_at_s if at_s >= hit.at_s]
        return min(after, default=None)


async def send_on(asking: Asking, course: Course, name: int) -> None:
    """Send until cancelled, and note what is acknowledged, and where."""
    loop, number = asyncio.get_running_loop(), 0
    while True:
        number += 1
        body, tried_at_s = f"{name}-{number}-".encode() + bytes(number % 700), loop.time()
        try:
            answer = await asking.send("T", name % QUEUES, body)
        except KourouError:
            await asyncio.sleep(0.05)
            continue
        if answer.code == ResponseCode.SUCCESS:
            place = int(answer.ext_fields["queueId"]), int(answer.ext_fields["queueOffset"])
            course.acknowledged[place] = body
            course.acknowledged_at_s.append((tried_at_s, loop.time()))
            await asyncio.sleep(course.pause_s)
        else:
            course.refused_at_s.append(loop.time())
            await asyncio.sleep(0.05)


def judge(hit: Hit, error: int, course: Course, *, is_harmless: bool) -> Iterator[tuple[str, str]]:
    """Yield what was wrong with how the broker took the failure.

    Args:
        hit: the call.
        error: its errno; 0 for a short write.
        course: what was seen.
        is_harmless: whether the failure must not be noticed: the system's own calls are repeated
            after EINTR, and short writes are finished.
    """
    is_full = error == errno.ENOSPC and not hit.operation.startswith("sync")
    if hit.is_vital and not is_full and not is_harmless:
        if course.trouble_at_s is None:
            yield LATE, "never in trouble"
        elif course.trouble_at_s - hit.at_s > READ_ONLY_WITHIN_S:
            yield LATE, f"after {(course.trouble_at_s - hit.at_s) * 1000:.0f} ms"
        elif not any("read-only" in text for text in course.troubles):
            yield SILENT, f"{course.troubles}"
        refused_s = course.refused_after_s(hit)
        if refused_s is None or refused_s > READ_ONLY_WITHIN_S:
            yield TAKEN, "never" if refused_s is None else f"after {refused_s * 1000:.0f} ms"
        # One connection brings the answers in their order: none may follow the first refusal.
        refused_at_s = math.inf if refused_s is None else hit.at_s + refused_s
        late = [
            at_s
            for tried_at_s, at_s in course.acknowledged_at_s
            if tried_at_s > hit.at_s or at_s > refused_at_s
        ]
        if hit.is_log_sync and late:
            yield RETRIED, f"{len(late)} messages"
    elif is_full or is_harmless:
        resumed = [at_s for _, at_s in course.acknowledged_at_s if at_s > hit.at_s]
        if not resumed:
            yield STUCK, f"{course.troubles}"
        elif resumed[0] > hit.at_s + RESUME_WITHIN_S:
            yield SLOW, f"after {resumed[0] - hit.at_s:.1f} s"
