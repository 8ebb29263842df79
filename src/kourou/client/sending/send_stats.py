"""What a producer has sent: totals, and rates and times of the last minute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW_S: Final = 60
"""Seconds that rates and times look back; one slot for each."""


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """What a producer has done.

    Each message of a batch counts. The rates and times are those of the last 60 seconds, or of the
    time since the start where that is shorter.

    Attributes:
        sent_total: messages that brokers have stored, since the start.
        failed_total: messages whose send raised, invalid ones aside; they may be stored.
        retries_total: tries after the first ones, each of a message or a batch.
        in_flight: messages being sent now.
        sent_per_s: messages stored a second.
        failed_per_s: messages failed a second.
        send_time_mean_ms: from the call to the receipt, all tries included; 0 if none was sent.
        send_time_max_ms: the longest such time.
    """

    sent_total: int
    failed_total: int
    retries_total: int
    in_flight: int
    sent_per_s: float
    failed_per_s: float
    send_time_mean_ms: float
    send_time_max_ms: float


@dataclass(slots=True)
class _Slot:
    """One second."""

    second: int = -1
    sent: int = 0
    failed: int = 0
    sends: int = 0
    time_sum_ms: float = 0.0
    time_max_ms: float = 0.0


class SendStats:
    """Counts sends. Times are seconds on one monotonic clock, given by the caller.

    Attributes:
        in_flight: messages being sent now.
    """

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._slots = [_Slot() for _ in range(WINDOW_S)]
        self._sent = self._failed = self._retries = self.in_flight = 0

    def on_begun(self, messages: int) -> None:
        """Note that so many messages are being sent."""
        self.in_flight += messages

    def on_retried(self) -> None:
        """Note a try after the first."""
        self._retries += 1

    def on_stored(self, messages: int, elapsed_s: float, now_s: float) -> None:
        """Note that messages begun together are stored."""
        self.in_flight -= messages
        self._sent += messages
        slot = self._slot(now_s)
        slot.sent += messages
        slot.sends += 1
        elapsed_ms = elapsed_s * 1000
        slot.time_sum_ms += elapsed_ms
        slot.time_max_ms = max(slot.time_max_ms, elapsed_ms)

    def on_stored_apart(
        self, messages: int, elapsed_sum_s: float, elapsed_max_s: float, now_s: float
    ) -> None:
        """Note that so many messages are stored, each begun by itself; their times as given."""
        self.in_flight -= messages
        self._sent += messages
        slot = self._slot(now_s)
        slot.sent += messages
        slot.sends += messages
        slot.time_sum_ms += elapsed_sum_s * 1000
        slot.time_max_ms = max(slot.time_max_ms, elapsed_max_s * 1000)

    def on_failed(self, messages: int, now_s: float) -> None:
        """Note that messages begun together failed."""
        self.in_flight -= messages
        self._failed += messages
        self._slot(now_s).failed += messages

    def on_cancelled(self, messages: int) -> None:
        """Note that the caller gave messages up, which is neither success nor failure."""
        self.in_flight -= messages

    def snapshot(self, now_s: float) -> ProducerStats:
        """Return what is counted so far."""
        since = int(now_s) - WINDOW_S
        slots = [slot for slot in self._slots if slot.second > since]
        span_s = min(float(WINDOW_S), max(1.0, now_s - self._started_s))
        sends = sum(slot.sends for slot in slots)
        time_sum_ms = sum(slot.time_sum_ms for slot in slots)
        return ProducerStats(
            sent_total=self._sent,
            failed_total=self._failed,
            retries_total=self._retries,
            in_flight=self.in_flight,
            sent_per_s=sum(slot.sent for slot in slots) / span_s,
            failed_per_s=sum(slot.failed for slot in slots) / span_s,
            send_time_mean_ms=time_sum_ms / sends if sends else 0.0,
            send_time_max_ms=max((slot.time_max_ms for slot in slots), default=0.0),
        )

    def _slot(self, now_s: float) -> _Slot:
        second = int(now_s)
        slot = self._slots[second % WINDOW_S]
        if slot.second != second:
            slot = self._slots[second % WINDOW_S] = _Slot(second)
        return slot
