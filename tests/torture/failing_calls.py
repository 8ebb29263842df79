"""Rules for a broker in which one file-changing call fails: acknowledgements and health.

Times are those of the sending loop, in seconds.
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
from tests.torture.broker_connection import BrokerConnection

FALSE: Final = "false acknowledgements"
LATE: Final = "not read-only within 100 ms"
TAKEN: Final = "sends not refused within 100 ms"
RETRIED: Final = "acknowledged after a failed sync"
SILENT: Final = "read-only without a reason in health"
STUCK: Final = "sends still refused after a full disk"
SLOW: Final = "sends accepted again after more than 5 s"
DAMAGE: Final = "findings of store check"
BROKEN: Final = "failed starts"

VITAL: Final = ("commitlog", "consumequeue", "checkpoint")
QUEUES: Final = 3
SENDERS: Final = 4
READ_ONLY_WITHIN_S: Final = 0.1
RESUME_WITHIN_S: Final = 5.0


@dataclass
class FailedCall:
    """The failed call.

    Attributes:
        operation, name: operation and file of the call; empty before it happened.
        at_s: loop time.
    """

    operation: str = ""
    name: str = ""
    at_s: float = 0.0

    @property
    def is_vital(self) -> bool:
        """True if the store must become read-only after this failure, except for ENOSPC."""
        return self.name.startswith(VITAL) and self.operation in ("write", "sync", "sync_directory")

    @property
    def is_log_sync(self) -> bool:
        return self.name.startswith("commitlog") and self.operation.startswith("sync")


@dataclass
class Observations:
    """Observed answers and health of the broker.

    Attributes:
        acknowledged: bodies by queue id and offset.
        acknowledged_at_s: for each acknowledged send, its start and the time of its answer.
        refused_at_s: times of refused sends.
        pause_s: pause of a sender after an acknowledgement.
        trouble_at_s: time at which the broker first reported trouble.
        troubles: the reported reasons.
    """

    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acknowledged_at_s: list[tuple[float, float]] = field(default_factory=list)
    refused_at_s: list[float] = field(default_factory=list)
    pause_s: float = 0.002
    trouble_at_s: float | None = None
    troubles: list[str] = field(default_factory=list)

    def refused_after_s(self, hit: FailedCall) -> float | None:
        """Return the time from the call to the first refused send; None if there was none."""
        after = [at_s - hit.at_s for at_s in self.refused_at_s if at_s >= hit.at_s]
        return min(after, default=None)


async def send_on(connection: BrokerConnection, observed: Observations, name: int) -> None:
    """Send until cancelled, and record acknowledged bodies by queue and offset."""
    loop, number = asyncio.get_running_loop(), 0
    while True:
        number += 1
        body, tried_at_s = f"{name}-{number}-".encode() + bytes(number % 700), loop.time()
        try:
            answer = await connection.send("T", name % QUEUES, body)
        except KourouError:
            await asyncio.sleep(0.05)
            continue
        if answer.code == ResponseCode.SUCCESS:
            place = int(answer.ext_fields["queueId"]), int(answer.ext_fields["queueOffset"])
            observed.acknowledged[place] = body
            observed.acknowledged_at_s.append((tried_at_s, loop.time()))
            await asyncio.sleep(observed.pause_s)
        else:
            observed.refused_at_s.append(loop.time())
            await asyncio.sleep(0.05)


def judge(
    hit: FailedCall, error: int, observed: Observations, *, is_harmless: bool
) -> Iterator[tuple[str, str]]:
    """Yield violations of the rules after the failed call.

    Args:
        hit: the call.
        error: its errno; 0 for a short write.
        observed: the observations.
        is_harmless: whether the failure must have no effect: system calls are repeated after
            EINTR, and short writes are completed.
    """
    is_full = error == errno.ENOSPC and not hit.operation.startswith("sync")
    if hit.is_vital and not is_full and not is_harmless:
        if observed.trouble_at_s is None:
            yield LATE, "no trouble reported"
        elif observed.trouble_at_s - hit.at_s > READ_ONLY_WITHIN_S:
            yield LATE, f"after {(observed.trouble_at_s - hit.at_s) * 1000:.0f} ms"
        elif not any("read-only" in text for text in observed.troubles):
            yield SILENT, f"{observed.troubles}"
        refused_s = observed.refused_after_s(hit)
        if refused_s is None or refused_s > READ_ONLY_WITHIN_S:
            yield TAKEN, "never" if refused_s is None else f"after {refused_s * 1000:.0f} ms"
        # One connection delivers the answers in order: no acknowledgement may follow a refusal.
        refused_at_s = math.inf if refused_s is None else hit.at_s + refused_s
        late = [
            at_s
            for tried_at_s, at_s in observed.acknowledged_at_s
            if tried_at_s > hit.at_s or at_s > refused_at_s
        ]
        if hit.is_log_sync and late:
            yield RETRIED, f"{len(late)} messages"
    elif is_full or is_harmless:
        resumed = [at_s for _, at_s in observed.acknowledged_at_s if at_s > hit.at_s]
        if not resumed:
            yield STUCK, f"{observed.troubles}"
        elif resumed[0] > hit.at_s + RESUME_WITHIN_S:
            yield SLOW, f"after {resumed[0] - hit.at_s:.1f} s"
