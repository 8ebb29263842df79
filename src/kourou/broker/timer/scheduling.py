"""Due times of scheduled messages, and their placement until then. Pure.

    property           meaning
    TIMER_DELAY_SEC    delay in seconds; takes precedence over the others
    TIMER_DELAY_MS     delay in milliseconds; takes precedence over the last
    TIMER_DELIVER_MS   due time, epoch milliseconds

A delay level takes precedence over all of them. A message that is due already is stored like any
other. All others are stored in topic rmq_sys_wheel_timer. As in Java, they get TIMER_OUT_MS, the
second before the due time. Here they also get the exact due time in TIMER_DELIVER_MS, whichever
property they came with.

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
from kourou.store.timer.slot_choice import out_ms

_TIMER_TOPIC_BYTES: Final = TIMER_TOPIC.encode()
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class TimerPlacement:
    """Places scheduled messages, for all handlers that store them.

    Args:
        config: the limits, and the broker's name.
        waiting_at: returns the number of messages due in the second of a time.
        random: selects the messages refused above the limit per second.
        on_placed: called with the time in ms until a placed message is due.
    """

    def __init__(
        self,
        config: LiveConfig,
        waiting_at: Callable[[int], int],
        random: Random,
        on_placed: Callable[[int], None],
    ) -> None:
        self._config = config
        self._waiting_at = waiting_at
        self._random = random
        self._on_placed = on_placed

    def place(
        self, topic: str, queue_id: int, properties: dict[str, str], now_ms: int
    ) -> Placement:
        """Return the placement of a scheduled message; see `schedule`.

        Raises:
            MessageIllegalError: as `schedule`.
            RemoteSystemError: the timer wheel is off, or too many messages are due in that second.
        """
        config = self._config.current.timer
        if not config.timer_wheel_enable:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        placed = schedule(topic, queue_id, properties, now_ms, config.timer_max_delay_sec * 1000)
        if placed.topic == TIMER_TOPIC:
            due_at_ms = int(properties[names.TIMER_DELIVER_MS])
            self._check_congestion(due_at_ms)
            self._on_placed(due_at_ms - now_ms)
        return placed

    def try_place(self, due_at_ms: int, now_ms: int) -> bool:
        """Note a message that `place` would put into the timer topic; False if `place` must decide.

        For messages of the broker itself, whose records are encoded without properties.
        """
        config = self._config.current.timer
        if (
            not config.timer_wheel_enable
            or config.timer_congest_num_each_slot != UNLIMITED
            or not 0 < due_at_ms - now_ms <= config.timer_max_delay_sec * 1000
        ):
            return False
        self._on_placed(due_at_ms - now_ms)
        return True

    def _check_congestion(self, due_at_ms: int) -> None:
        limit = self._config.current.timer.timer_congest_num_each_slot
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
        """Return the recall handle of a message stored in a topic; None if it has none."""
        if stored_in != _TIMER_TOPIC_BYTES:
            return None
        return recall_handle(properties, self._config.current.broker_name)


def schedule(
    topic: str, queue_id: int, properties: dict[str, str], now_ms: int, max_delay_ms: int
) -> Placement:
    """Return the present placement of a scheduled message without a delay level.

    `properties` is changed: a message that is not due yet gets its due time and destination.

    Args:
        topic: destination topic.
        queue_id: destination queue.
        properties: properties of the message.
        now_ms: the time.
        max_delay_ms: longest accepted delay.

    Raises:
        MessageIllegalError: the time is not a number or too far ahead; or the message is a recall
            and is due already.
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
            f"it recalls a message that was due at {due_at_ms}, now it is {now_ms}; if set del "
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
    """Return the due time. Raises MessageIllegalError if it is not a number."""
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
    raise _illegal("it has no due time")


def _illegal(reason: str) -> MessageIllegalError:
    return MessageIllegalError(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {reason}")


def recall_handle(properties: Mapping[str, str], broker: str) -> str | None:
    """Return the recall handle of a scheduled message; None if it cannot be recalled.

    Args:
        properties: the stored properties.
        broker: the broker's name.
    """
    topic, time = properties.get(names.REAL_TOPIC, ""), properties.get(names.TIMER_OUT_MS, "")
    if not topic or is_retry_topic(topic) or not _NUMBER.fullmatch(time):
        return None
    return RecallHandle(topic, broker, str(int(time) + 1), properties[names.UNIQ_KEY]).encode()
