"""When a message that is sent is to be delivered, and where it waits until then. Pure.

    property           means
    TIMER_DELAY_SEC    so many seconds from now; it comes before the others
    TIMER_DELAY_MS     so many milliseconds from now
    TIMER_DELIVER_MS   at this time, epoch milliseconds

A delay level overrides all of them. What is due already is stored as any other message. The rest
waits in topic rmq_sys_wheel_timer, with TIMER_OUT_MS, the second before its time, as in Java; and
here with the exact time in TIMER_DELIVER_MS, whichever it came with.

Source: HookUtils.checkIfTimerMessage and transformTimerMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from kourou.broker.live_config import LiveConfig
from kourou.broker.timer.timer_config import UNLIMITED
from kourou.broker.writing.placement import Placement
from kourou.errors import MessageIllegalError, RemoteSystemError
from kourou.model import properties as names
from kourou.model.recall_handle import RecallHandle
from kourou.model.topic import TIMER_TOPIC, is_retry_topic
from kourou.protocol.codes import ResponseCode
from kourou.store.timer.placing import out_ms

_TIMER_TOPIC_BYTES: Final = TIMER_TOPIC.encode()
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class TimerSends:
    """Decides where messages with a timer go, for all who store them.

    Args:
        config: the limits, and the broker's name.
        waiting_at: tells how many messages wait for the second of a time.
        random: chooses who is refused where very many wait for one second.
    """

    def __init__(
        self, config: LiveConfig, waiting_at: Callable[[int], int], random: Random
    ) -> None:
        self._config = config
        self._waiting_at = waiting_at
        self._random = random

    def place(
        self, topic: str, queue_id: int, properties: dict[str, str], now_ms: int
    ) -> Placement:
        """Return where a message with a timer is stored; see `schedule`.

        Raises:
            MessageIllegalError: as `schedule`.
            RemoteSystemError: the wheel is off, or very many wait for the same second.
        """
        config = self._config.now.timer
        if not config.timer_wheel_enable:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        placed = schedule(topic, queue_id, properties, now_ms, config.timer_max_delay_sec * 1000)
        if placed.topic == TIMER_TOPIC:
            self._check_congestion(int(properties[names.TIMER_DELIVER_MS]))
        return placed

    def _check_congestion(self, due_at_ms: int) -> None:
        limit = self._config.now.timer.timer_congest_num_each_slot
        if limit == UNLIMITED:
            return
        waiting = self._waiting_at(due_at_ms)
        if waiting <= limit:
            return
        if waiting >= 2 * limit or self._random.random() * limit < waiting - limit:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {2 * limit} or the current "
                f"value is greater than {limit} and less than {2 * limit}, trigger random flow "
                f"control; {waiting} messages are due in that second",
            )

    def handle(self, stored_in: bytes, properties: Mapping[str, str]) -> str | None:
        """Return what takes back a message that is stored in a topic; None if nothing can."""
        if stored_in != _TIMER_TOPIC_BYTES:
            return None
        return recall_handle(properties, self._config.now.broker_name)


def schedule(
    topic: str, queue_id: int, properties: dict[str, str], now_ms: int, max_delay_ms: int
) -> Placement:
    """Return where a message with a timer and without a delay level is stored now.

    `properties` is changed: one that waits gets its time and its destination.

    Args:
        topic: where consumers are to find it.
        queue_id: the queue there.
        properties: the message's own.
        now_ms: the time.
        max_delay_ms: the longest delay that is taken.

    Raises:
        MessageIllegalError: the time is no number or too far; or it takes another message back and
            is due already.
    """
    due_at_ms = _due_at_ms(properties, now_ms)
    is_due = due_at_ms <= now_ms
    if due_at_ms - now_ms > max_delay_ms:
        raise _illegal(
            f"it is due in {due_at_ms - now_ms} ms; the delay time should not be bigger than the "
            f"max delay {max_delay_ms}ms (timerMaxDelaySec)"
        )
    if is_due and names.TIMER_DEL_UNIQKEY in properties:
        raise _illegal(
            f"it takes back a message that was due at {due_at_ms}, now it is {now_ms}; if set del "
            "msg, the delay time should be bigger than the current time"
        )
    if is_due:
        return Placement(topic, queue_id)
    properties[names.TIMER_DELIVER_MS] = str(due_at_ms)
    properties[names.TIMER_OUT_MS] = str(out_ms(due_at_ms))
    properties[names.REAL_TOPIC] = topic
    properties[names.REAL_QID] = str(queue_id)
    return Placement(TIMER_TOPIC, 0)


def _due_at_ms(properties: Mapping[str, str], now_ms: int) -> int:
    """Return the time. Raises MessageIllegalError if it is no number."""
    for name, start, unit in (
        (names.TIMER_DELAY_SEC, now_ms, 1000),
        (names.TIMER_DELAY_MS, now_ms, 1),
        (names.TIMER_DELIVER_MS, 0, 1),
    ):
        text = properties.get(name)
        if text is not None:
            if not _NUMBER.fullmatch(text):
                raise _illegal(f"{name} is {text[:40]!r}, and must be a whole number")
            return start + int(text) * unit
    raise _illegal("it has no time")


def _illegal(reason: str) -> MessageIllegalError:
    return MessageIllegalError(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {reason}")


def recall_handle(properties: Mapping[str, str], broker: str) -> str | None:
    """Return what takes a message back that waits; None if nothing can.

    Args:
        properties: as they are stored.
        broker: the broker's name.
    """
    topic, time = properties.get(names.REAL_TOPIC, ""), properties.get(names.TIMER_OUT_MS, "")
    if not topic or is_retry_topic(topic) or not _NUMBER.fullmatch(time):
        return None
    return RecallHandle(topic, broker, str(int(time) + 1), properties[names.UNIQ_KEY]).encode()
