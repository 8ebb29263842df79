"""What a listener raises to say when its message is to come again, or that it never is; pure.

    raise RetryLater()                     as any other exception: after 10 s, 30 s, 1 min ...
    raise RetryLater(level=5)              after the broker's delay level 5, which is 1 min
    raise RetryLater(delay_ms=90_000)      after a minute and a half
    raise DeadLetter("no such account")    never: into the dead-letter topic `%DLQ%group` at once

A listener of batches names the messages it means; those it does not name are done:

    raise RetryLater(messages=failed)

The two may come in an ExceptionGroup, as of an `asyncio.TaskGroup`. Each delivery counts, whenever
it comes: after `max_reconsume_times` the message is a dead letter.

Source: ConsumeConcurrentlyContext.java (delayLevelWhenNextConsume, ackIndex).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kourou.errors import UsageError
from kourou.model.delay import DELAY_LEVELS_MS
from kourou.model.message import MessageExt
from kourou.protocol.headers_send import REASON_CHARS_MAX

LEVEL_MAX: Final = 100
"""Highest delay level that may be asked for; a broker takes its own highest for those above it."""
DELAY_MAX_MS: Final = 365 * 86_400_000
"""Longest delay that may be asked for, in ms: a year."""

_BY_BROKER: Final = 0
_NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class Redelivery:
    """How a message is given back.

    Attributes:
        level: the delay level; 0: the broker's own order of delays; negative: dead letter.
        delay_ms: wait so long instead, in ms.
        reason: why, in one line, for the dead letter that it may become.
        is_asked_for: the listener said so, and is not to be called before the time it named.
    """

    level: int = _BY_BROKER
    delay_ms: int | None = None
    reason: str | None = None
    is_asked_for: bool = False


DEFAULT: Final = Redelivery()
"""Later and later, as the broker decides."""


class RetryLater(Exception):  # noqa: N818  # an instruction, not an error
    """Raised by a listener: deliver the message again later.

    Args:
        reason: why; told by the dead letter, should it become one.
        level: a delay level, from 1; None leaves it to the broker, which waits longer each time.
        delay_ms: how long to wait, in ms, instead of a level. It is kept to the time where the
            broker delivers at times; else the shortest level is taken that is not shorter.
        messages: which of a batch are meant; None: all.

    Raises:
        UsageError: `level` or `delay_ms` is out of its range, or both are given.
    """

    def __init__(
        self,
        reason: str = "",
        *,
        level: int | None = None,
        delay_ms: int | None = None,
        messages: Iterable[MessageExt] | None = None,
    ) -> None:
        super().__init__(reason)
        if level is not None and delay_ms is not None:
            raise UsageError("retry later at a level or after a delay, not both")
        if level is not None and not 1 <= level <= LEVEL_MAX:
            raise UsageError(f"level is {level}: allowed are 1 to {LEVEL_MAX}")
        if delay_ms is not None and not 1 <= delay_ms <= DELAY_MAX_MS:
            raise UsageError(f"delay_ms is {delay_ms}: allowed are 1 to {DELAY_MAX_MS}")
        self.level = level
        self.delay_ms = delay_ms
        self.messages = None if messages is None else list(messages)


class DeadLetter(Exception):  # noqa: N818  # an instruction, not an error
    """Raised by a listener: never deliver the message again; keep it as a dead letter.

    Args:
        reason: why; the dead letter's property `KOUROU_DLQ_REASON` tells it.
        messages: which of a batch are meant; None: all.
    """

    def __init__(self, reason: str = "", *, messages: Iterable[MessageExt] | None = None) -> None:
        super().__init__(reason)
        self.messages = None if messages is None else list(messages)


def redelivery_of(error: BaseException, message: MessageExt) -> Redelivery | None:
    """Return how `message` is given back after its listener raised `error`; None: it is done."""
    failed: BaseException | None = None
    for one in _leaves(error):
        if not isinstance(one, RetryLater | DeadLetter):
            failed = failed or one
        elif one.messages is None or any(named is message for named in one.messages):
            return _as_told(one)
    return None if failed is None else Redelivery(reason=reason_of(failed))


def is_instruction(error: BaseException) -> bool:
    """Return whether a listener that raised this did nothing but say what is to become of it."""
    return all(isinstance(one, RetryLater | DeadLetter) for one in _leaves(error))


def level_not_shorter(delay_ms: int) -> int:
    """Return the shortest of RocketMQ's delay levels that waits so long; the longest if none."""
    for level, waits_ms in enumerate(DELAY_LEVELS_MS, 1):
        if waits_ms >= delay_ms:
            return level
    return len(DELAY_LEVELS_MS)


def reason_of(error: BaseException) -> str:
    """Return what happened, in one short line without control characters."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the listener's own class
        text = ""
    if not isinstance(error, RetryLater | DeadLetter):
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:REASON_CHARS_MAX]


def _as_told(told: RetryLater | DeadLetter) -> Redelivery:
    reason = reason_of(told) or None
    if isinstance(told, DeadLetter):
        return Redelivery(_NEVER, reason=reason, is_asked_for=True)
    is_timed = told.level is not None or told.delay_ms is not None
    return Redelivery(told.level or _BY_BROKER, told.delay_ms, reason, is_asked_for=is_timed)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
