"""Receipt handle: identifies a popped message, so that it can be acknowledged or changed.

A handle is the value of the property POP_CK and of the header field `extraInfo`: words separated by
blanks.

    start offset, pop time, invisible time, revive queue, kind, broker name, queue,
        [queue offset, [commit log offset]]

Brokers never write the commit log offset. Requests that have the queue offset in another field may
omit it in the handle. Further words are ignored.

Source: ExtraInfoUtil.java, ReceiptHandle.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kourou.errors import MalformedHeaderError
from kourou.protocol.fields import parse_int, parse_long
from kourou.protocol.popping.topic_names import NOT_RETRY, ORDER_REVIVE_QUEUE, real_topic

_USUAL: Final = re.compile(
    r"(\d{1,18}) (\d{1,18}) (\d{1,18}) (\d{1,9}) ([^ ]*) ([^ ]*) (\d{1,9}) (\d{1,18})"
    r"(?: (\d{1,18}))?",
    re.ASCII,
)
"""Handles as brokers and proxies write them, with numbers that fit their types."""

_WORDS_MIN: Final = 7
_SHOWN_CHARS: Final = 80


class ReceiptHandle(NamedTuple):
    """Fields of a handle.

    Attributes:
        start_offset: that of the message's checkpoint, which may be below its first message.
        pop_time_ms: epoch milliseconds.
        invisible_ms: time after the pop in which no other client receives the message.
        revive_queue: queue of the checkpoint; ORDER_REVIVE_QUEUE for an ordered pop, without one.
        kind: kind of the topic that holds the message: NOT_RETRY, RETRY_V1 or RETRY_V2.
        offset: the message's queue offset; None if the handle lacks it.
        commit_log_offset: None if the handle lacks it.
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker_name: str
    queue_id: int
    offset: int | None = None
    commit_log_offset: int | None = None

    @property
    def revive_at_ms(self) -> int:
        """Time at which the message becomes visible again, in epoch milliseconds."""
        return self.pop_time_ms + self.invisible_ms

    @property
    def is_ordered(self) -> bool:
        """Whether the pop was an ordered one."""
        return self.revive_queue == ORDER_REVIVE_QUEUE

    @property
    def is_retry(self) -> bool:
        """Whether a pop retry topic holds the message."""
        return self.kind != NOT_RETRY

    def real_topic(self, topic: str, group: str) -> str:
        """Return the topic that holds the message; `topic` is the one that the client popped."""
        return real_topic(topic, group, self.kind)

    def changed(
        self, offset: int, pop_time_ms: int, invisible_ms: int, revive_queue: int
    ) -> ReceiptHandle:
        """Return the handle after a change of the invisible time: that of a checkpoint of its own.

        Args:
            offset: the message's queue offset.
            pop_time_ms: from the broker's answer, as the others.
            invisible_ms: likewise.
            revive_queue: likewise.
        """
        return self._replace(
            start_offset=offset,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            revive_queue=revive_queue,
            offset=offset,
        )

    def encode(self) -> str:
        """Return the text of the handle."""
        words = f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue}"
        words = f"{words} {self.kind} {self.broker_name} {self.queue_id}"
        if self.offset is None:
            return words
        if self.commit_log_offset is None:
            return f"{words} {self.offset}"
        return f"{words} {self.offset} {self.commit_log_offset}"


def decode_receipt_handle(text: str) -> ReceiptHandle:
    """Return the fields of a handle.

    Raises:
        MalformedHeaderError: the text has fewer than seven words, or a word is not the number that
            it should be.
    """
    match = _USUAL.fullmatch(text)
    if match is None:
        return _decode_words(text)
    start, pop_time, invisible, revive, kind, broker, queue, offset, stored_at = match.groups()
    return ReceiptHandle(
        int(start),
        int(pop_time),
        int(invisible),
        int(revive),
        kind,
        broker,
        int(queue),
        int(offset),
        None if stored_at is None else int(stored_at),
    )


def _decode_words(text: str) -> ReceiptHandle:
    words = text.rstrip(" ").split(" ")
    if len(words) < _WORDS_MIN:
        raise _malformed(text, f"it has {len(words)} words, at least {_WORDS_MIN} are needed")
    optional = [*words[_WORDS_MIN:], None, None]
    try:
        return ReceiptHandle(
            parse_long(words[0]),
            parse_long(words[1]),
            parse_long(words[2]),
            parse_int(words[3]),
            words[4],
            words[5],
            parse_int(words[6]),
            *(None if word is None else parse_long(word) for word in optional[:2]),
        )
    except ValueError as error:
        raise _malformed(text, str(error)) from None


def _malformed(text: str, reason: str) -> MalformedHeaderError:
    return MalformedHeaderError(
        f"receipt handle is invalid: {text[:_SHOWN_CHARS]!r}: {reason}; pass the one that the pop "
        "returned (POP_CK)"
    )
