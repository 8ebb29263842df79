"""Exceptions by which a listener controls the redelivery of its message; pure.

    raise RetryLater()                     as any other exception: after 10 s, 30 s, 1 min ...
    raise RetryLater(level=5)              after the broker's delay level 5, which is 1 min
    raise RetryLater(delay_ms=90_000)      after a minute and a half
    raise DeadLetter("no such account")    never: stored in the dead-letter topic `%DLQ%group`

A listener of batches names the messages concerned; the others are done:

    raise RetryLater(messages=failed)

Both may be raised in an ExceptionGroup, for example by an `asyncio.TaskGroup`. Every redelivery
counts, whatever its delay: after `max_reconsume_times` the message becomes a dead letter.

Source: ConsumeConcurrentlyContext.java (delayLevelWhenNextConsume, ackIndex).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kourou.errors import UsageError
from kourou.model.delay import DELAY_LEVELS_MS
from kourou.model.message import MessageExt
from kourou.protocol.sending import REASON_CHARS_MAX

LEVEL_MAX: Final = 100
"""Highest delay level that may be requested; a broker applies its own highest to those above it."""
DELAY_MAX_MS: Final = 365 * 86_400_000
"""Longest delay that may be requested, in ms: a year."""

FIRST_DELAY_LEVEL: Final = 3
"""Level 3, 10 seconds: that of the first redelivery; one level more for each earlier one."""

_BY_BROKER: Final = 0
_DEAD_LETTER_LEVEL: Final = -1


@dataclass(frozen=True, slots=True)
class Redelivery:
    """The redelivery of a message.

    Attributes:
        level: the delay level; 0: the broker increases the delay each time; negative: dead letter.
        delay_ms: the delay in ms, instead of a level.
        reason: one line, stored in the dead letter that the message may become.
        is_requested: the listener requested this delay or a dead letter, and must not be called
            earlier.
    """

    level: int = _BY_BROKER
    delay_ms: int | None = None
    reason: str | None = None
    is_requested: bool = False


DEFAULT: Final = Redelivery()
"""The broker chooses the delay, longer each time."""


class RetryLater(Exception):  # noqa: N818  # an instruction, not an error
    """Raised by a listener to have the message redelivered later.

    Args:
        reason: stored in the dead letter, should the message become one.
        level: a delay level, from 1; None: the broker chooses one, longer each time.
        delay_ms: the delay in ms, instead of a level. It is exact if the broker supports scheduled
            messages; otherwise the shortest level that is not shorter is used.
        messages: the messages of a batch to redeliver; None: all.

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
            raise UsageError("RetryLater takes level or delay_ms, not both")
        if level is not None and not 1 <= level <= LEVEL_MAX:
            raise UsageError(f"level is {level}: allowed are 1 to {LEVEL_MAX}")
        if delay_ms is not None and not 1 <= delay_ms <= DELAY_MAX_MS:
            raise UsageError(f"delay_ms is {delay_ms}: allowed are 1 to {DELAY_MAX_MS}")
        self.level = level
        self.delay_ms = delay_ms
        self.messages = None if messages is None else list(messages)


class DeadLetter(Exception):  # noqa: N818  # an instruction, not an error
    """Raised by a listener to store the message as a dead letter and not redeliver it.

    Args:
        reason: stored in the dead letter's property `KOUROU_DLQ_REASON`.
        messages: the messages of a batch to store as dead letters; None: all.
    """

    def __init__(self, reason: str = "", *, messages: Iterable[MessageExt] | None = None) -> None:
        super().__init__(reason)
        self.messages = None if messages is None else list(messages)


def redelivery_of(error: BaseException, message: MessageExt) -> Redelivery | None:
    """Return the redelivery of `message` after its listener raised `error`; None: it is done."""
    failed: BaseException | None = None
    for one in _leaves(error):
        if not isinstance(one, RetryLater | DeadLetter):
            failed = failed or one
        elif one.messages is None or any(named is message for named in one.messages):
            return _requested_redelivery(one)
    return None if failed is None else Redelivery(reason=reason_of(failed))


def is_instruction(error: BaseException) -> bool:
    """Return whether `error` consists of RetryLater and DeadLetter only."""
    return all(isinstance(one, RetryLater | DeadLetter) for one in _leaves(error))


def level_not_shorter(delay_ms: int) -> int:
    """Return RocketMQ's shortest delay level of at least `delay_ms`; the longest if none is."""
    for level, waits_ms in enumerate(DELAY_LEVELS_MS, 1):
        if waits_ms >= delay_ms:
            return level
    return len(DELAY_LEVELS_MS)


def invisible_ms_of(redelivery: Redelivery, reconsume_times: int) -> int:
    """Return the delay in ms before a popped message is delivered again; not for dead letters.

    Args:
        redelivery: as requested.
        reconsume_times: number of earlier redeliveries of the message.
    """
    if redelivery.delay_ms is not None:
        return redelivery.delay_ms
    level = redelivery.level or FIRST_DELAY_LEVEL + reconsume_times
    return DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]


def reason_of(error: BaseException) -> str:
    """Return the error as one short line without control characters."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the listener's own class
        text = ""
    if not isinstance(error, RetryLater | DeadLetter):
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:REASON_CHARS_MAX]


def _requested_redelivery(instruction: RetryLater | DeadLetter) -> Redelivery:
    reason = reason_of(instruction) or None
    if isinstance(instruction, DeadLetter):
        return Redelivery(_DEAD_LETTER_LEVEL, reason=reason, is_requested=True)
    is_timed = instruction.level is not None or instruction.delay_ms is not None
    return Redelivery(
        instruction.level or _BY_BROKER, instruction.delay_ms, reason, is_requested=is_timed
    )


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
