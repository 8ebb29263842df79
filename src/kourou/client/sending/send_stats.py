"""Statistics of a producer: totals, and rates and latencies of the last minute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW_S: Final = 60
"""Window of rates and latencies in seconds; there is one slot for each second."""


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Statistics of a producer.

    Each message of a batch counts. Rates and times are those of the last 60 seconds, or of the time
    since the start if that is shorter.

    Attributes:
        sent_total: messages stored by brokers since the start.
        failed_total: messages whose send raised, except invalid ones; they may be stored.
        retries_total: tries after the first one, of messages and batches.
        in_flight: messages being sent.
        sent_per_s: messages stored per second.
        failed_per_s: messages failed per second.
        send_time_mean_ms: mean time from the call to the receipt, including all tries; 0 if no
            message was sent.
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
    """Counters of one second."""

    second: int = -1
    sent: int = 0
    failed: int = 0
    sends: int = 0
    time_sum_ms: float = 0.0
    time_max_ms: float = 0.0


class SendStats:
    """Counts sends. The caller passes times as seconds of one monotonic clock.

    Attributes:
        in_flight: messages being sent.
    """

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._slots = [_Slot() for _ in range(WINDOW_S)]
        self._sent = self._failed = self._retries = self.in_flight = 0

    def on_begun(self, messages: int) -> None:
        """Record the begin of a send of `messages` messages."""
        self.in_flight += messages

    def on_retried(self) -> None:
        """Record a retry."""
        self._retries += 1

    def on_stored(self, messages: int, elapsed_s: float, now_s: float) -> None:
        """Record that the messages of one send are stored."""
        self.in_flight -= messages
        self._sent += messages
        slot = self._slot(now_s)
        slot.sent += messages
        slot.sends += 1
        elapsed_ms = elapsed_s * 1000
        slot.time_sum_ms += elapsed_ms
        slot.time_max_ms = max(slot.time_max_ms, elapsed_ms)

    def on_stored_separately(
        self, messages: int, elapsed_sum_s: float, elapsed_max_s: float, now_s: float
    ) -> None:
        """Record that messages of separate sends are stored, with the sum and maximum of times."""
        self.in_flight -= messages
        self._sent += messages
        slot = self._slot(now_s)
        slot.sent += messages
        slot.sends += messages
        slot.time_sum_ms += elapsed_sum_s * 1000
        slot.time_max_ms = max(slot.time_max_ms, elapsed_max_s * 1000)

    def on_failed(self, messages: int, now_s: float) -> None:
        """Record that the messages of one send failed."""
        self.in_flight -= messages
        self._failed += messages
        self._slot(now_s).failed += messages

    def on_cancelled(self, messages: int) -> None:
        """Record that the caller cancelled messages, which is neither success nor failure."""
        self.in_flight -= messages

    def snapshot(self, now_s: float) -> ProducerStats:
        """Return the current statistics."""
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
