"""Verdicts on requests that end transactions: the refusals by request and half message.

Pure. The general path (`end_transaction.py`) gives every end a verdict. The fast path
(`fast_end.py`) calls `end_refusal` too. It needs no `immunity_refusal`: it ends only half messages
without a property of `half_messages.INTERPRETED`, and an immunity time is one of these.

Source: EndTransactionProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import NamedTuple

from kourou.model.topic import TOPIC_LENGTH_MAX
from kourou.protocol.codes import ResponseCode

EndKey = tuple[str, int]
"""Producer group and queue offset, in which a request and its half message must agree."""


class EndRefusal(NamedTuple):
    """The refusal of an end."""

    code: ResponseCode
    text: str


def end_refusal(request: EndKey, half: EndKey) -> EndRefusal | None:
    """Return the refusal of an end that does not match its half message; None if it does."""
    if request == half:
        return None
    if request[0] != half[0]:
        return EndRefusal(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    return EndRefusal(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")


def immunity_refusal(age_ms: int, immunity_ms: int | None) -> EndRefusal | None:
    """Return the refusal of an end that answers no check and is too late; None if it is in time.

    Args:
        age_ms: age of the half message.
        immunity_ms: its own immunity time; None if it has none.
    """
    if immunity_ms is None or age_ms <= immunity_ms:
        return None
    return EndRefusal(
        ResponseCode.ILLEGAL_OPERATION,
        f"the transaction is {age_ms} ms old, and its immunity time of {immunity_ms} ms is over: "
        "answer its check",
    )


def no_topic_refusal(topic: str) -> EndRefusal:
    """Return the refusal of a commit whose topic does not exist."""
    return EndRefusal(
        ResponseCode.TOPIC_NOT_EXIST,
        f"the transaction is for topic {topic[:TOPIC_LENGTH_MAX]!r}, which does not exist "
        "(any more): create the topic and commit again, or roll back",
    )
