r"""The text of traces: what clients note of each message's way, in the body of a trace message.

Fields are joined by \x01, records end with \x02, any number of them one behind the other. What is
missing is the text `null`, a flag `true` or `false`:

    Pub, time, region, group, topic, id, tags, keys, store host, body size, cost, kind, offset id,
        ok
    SubBefore, time, region, group, request id, message id, retries, keys
    SubAfter, request id, message id, cost, ok, keys, outcome, time, group
    EndTransaction, time, region, group, topic, id, tags, keys, store host, kind, transaction id,
        state, from check
    Recall, time, region, group, topic, id, ok

Source: TraceDataEncoder.java, TraceType.java, MessageType.java, ConsumeReturnType.java,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from kourou.errors import MalformedBodyError

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"

_NULL: Final = "null"
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_ENDS: Final = str.maketrans({FIELD_END: " ", RECORD_END: " "})


class TracedKind(IntEnum):
    """What kind of message was sent."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class TracedOutcome(IntEnum):
    """How a listener ended."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NOTHING = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTrace:
    """A message was sent (Pub).

    Attributes:
        at_ms: epoch milliseconds at its beginning; `cost_ms`, how long it took.
        region: the broker's.
        group: the producer's.
        msg_id: the unique id.
        keys: joined by blanks.
        store_host: `host:port` of the broker.
        body_bytes: as it was sent, compressed or not.
        is_success: stored without reservation.
        client_host: the producer's address, where the reader of a trace added it.
    """

    at_ms: int
    region: str | None
    group: str | None
    topic: str | None
    msg_id: str | None
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    body_bytes: int = 0
    cost_ms: int = 0
    kind: TracedKind = TracedKind.NORMAL
    offset_msg_id: str | None = None
    is_success: bool = True
    client_host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumingTrace:
    """A listener is about to be called with a message (SubBefore).

    Attributes:
        request_id: names this call; `ConsumedTrace` has the same.
        retries: how often the message was given back before.
    """

    at_ms: int
    region: str | None
    group: str | None
    request_id: str | None
    msg_id: str | None
    retries: int = 0
    keys: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedTrace:
    """A listener's call has ended (SubAfter).

    Attributes:
        cost_ms: of the call, for each of its messages.
        at_ms: when it ended; None, and so is `group`, of clients that do not tell.
        outcome: None of clients that do not tell.
    """

    request_id: str | None
    msg_id: str | None
    cost_ms: int = 0
    is_success: bool = True
    keys: str | None = None
    outcome: TracedOutcome | None = TracedOutcome.SUCCESS
    at_ms: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEndTrace:
    """A half message was committed, rolled back or left open (EndTransaction).

    Attributes:
        state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
        is_from_check: the broker had asked.
    """

    at_ms: int
    region: str | None
    group: str | None
    topic: str | None
    msg_id: str | None
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    kind: TracedKind = TracedKind.COMMIT
    transaction_id: str | None = None
    state: str | None = None
    is_from_check: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTrace:
    """A delayed message was taken back, or was not (Recall)."""

    at_ms: int
    region: str | None
    group: str | None
    topic: str | None
    msg_id: str | None
    is_success: bool = True


TraceRecord = SentTrace | ConsumingTrace | ConsumedTrace | TransactionEndTrace | RecallTrace


def encode_trace(record: TraceRecord) -> str:
    """Return the text of a record; characters that end fields within a value become blanks."""
    fields = _ENCODERS[type(record)](record)
    return FIELD_END.join(map(_text, fields)) + RECORD_END


def decode_traces(body: bytes) -> list[TraceRecord]:
    """Return the records of a trace message's body; those of unknown types are left out.

    Raises:
        MalformedBodyError: a record has too few fields, or no number where one belongs.
    """
    records: list[TraceRecord] = []
    for line in body.decode(errors="replace").split(RECORD_END):
        fields = line.split(FIELD_END)
        decode = _DECODERS.get(fields[0])
        if decode is None:
            continue
        least, read = decode
        if len(fields) < least:
            raise MalformedBodyError(f"a {fields[0]} trace has {len(fields)} fields, not {least}")
        records.append(read(fields))
    return records


def _encode_sent(one: SentTrace) -> Iterable[object]:
    host = () if one.client_host is None else (one.client_host,)
    return (
        "Pub", one.at_ms, one.region, one.group, one.topic, one.msg_id, one.tags, one.keys,
        one.store_host, one.body_bytes, one.cost_ms, one.kind, one.offset_msg_id, one.is_success,
        *host,
    )  # fmt: skip


def _encode_consuming(one: ConsumingTrace) -> Iterable[object]:
    return (
        "SubBefore", one.at_ms, one.region, one.group, one.request_id, one.msg_id, one.retries,
        one.keys,
    )  # fmt: skip


def _encode_consumed(one: ConsumedTrace) -> Iterable[object]:
    fields = ("SubAfter", one.request_id, one.msg_id, one.cost_ms, one.is_success, one.keys)
    if one.outcome is None:
        return fields
    if one.at_ms is None:
        return (*fields, one.outcome)
    return (*fields, one.outcome, one.at_ms, one.group)


def _encode_end(one: TransactionEndTrace) -> Iterable[object]:
    return (
        "EndTransaction", one.at_ms, one.region, one.group, one.topic, one.msg_id, one.tags,
        one.keys, one.store_host, one.kind, one.transaction_id, one.state, one.is_from_check,
    )  # fmt: skip


def _encode_recall(one: RecallTrace) -> Iterable[object]:
    return ("Recall", one.at_ms, one.region, one.group, one.topic, one.msg_id, one.is_success)


_ENCODERS: Final[dict[type, Callable[..., Iterable[object]]]] = {
    SentTrace: _encode_sent,
    ConsumingTrace: _encode_consuming,
    ConsumedTrace: _encode_consumed,
    TransactionEndTrace: _encode_end,
    RecallTrace: _encode_recall,
}


def _decode_sent(fields: list[str]) -> SentTrace:
    # The offset id came later than the flag behind it, the client's host last.
    has_offset_id = len(fields) >= 14
    ok_at = 13 if has_offset_id else 12
    return SentTrace(
        at_ms=_number(fields[1]),
        region=_value(fields[2]),
        group=_value(fields[3]),
        topic=_value(fields[4]),
        msg_id=_value(fields[5]),
        tags=_value(fields[6]),
        keys=_value(fields[7]),
        store_host=_value(fields[8]),
        body_bytes=_number(fields[9]),
        cost_ms=_number(fields[10]),
        kind=_member(TracedKind, fields[11]),
        offset_msg_id=_value(fields[12]) if has_offset_id else None,
        is_success=len(fields) <= ok_at or _flag(fields[ok_at]),
        client_host=_value(fields[14]) if len(fields) > 14 else None,
    )


def _decode_consuming(fields: list[str]) -> ConsumingTrace:
    return ConsumingTrace(
        at_ms=_number(fields[1]),
        region=_value(fields[2]),
        group=_value(fields[3]),
        request_id=_value(fields[4]),
        msg_id=_value(fields[5]),
        retries=_number(fields[6]),
        keys=_value(fields[7]),
    )


def _decode_consumed(fields: list[str]) -> ConsumedTrace:
    outcome = len(fields) > 6 and bool(fields[6])
    tells_when = len(fields) > 8
    return ConsumedTrace(
        request_id=_value(fields[1]),
        msg_id=_value(fields[2]),
        cost_ms=_number(fields[3]),
        is_success=_flag(fields[4]),
        keys=_value(fields[5]),
        outcome=_member(TracedOutcome, fields[6]) if outcome else None,
        at_ms=_number(fields[7]) if tells_when else None,
        group=_value(fields[8]) if tells_when else None,
    )


def _decode_end(fields: list[str]) -> TransactionEndTrace:
    return TransactionEndTrace(
        at_ms=_number(fields[1]),
        region=_value(fields[2]),
        group=_value(fields[3]),
        topic=_value(fields[4]),
        msg_id=_value(fields[5]),
        tags=_value(fields[6]),
        keys=_value(fields[7]),
        store_host=_value(fields[8]),
        kind=_member(TracedKind, fields[9]),
        transaction_id=_value(fields[10]),
        state=_value(fields[11]),
        is_from_check=_flag(fields[12]),
    )


def _decode_recall(fields: list[str]) -> RecallTrace:
    return RecallTrace(
        at_ms=_number(fields[1]),
        region=_value(fields[2]),
        group=_value(fields[3]),
        topic=_value(fields[4]),
        msg_id=_value(fields[5]),
        is_success=_flag(fields[6]),
    )


_DECODERS: Final[dict[str, tuple[int, Callable[[list[str]], TraceRecord]]]] = {
    "Pub": (12, _decode_sent),
    "SubBefore": (8, _decode_consuming),
    "SubAfter": (6, _decode_consumed),
    "EndTransaction": (13, _decode_end),
    "Recall": (7, _decode_recall),
}
"""By the first field: how many fields there are at least, and what reads them."""


def _text(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    return str(value).translate(_ENDS) or _NULL


def _value(text: str) -> str | None:
    return None if text in ("", _NULL) else text


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise MalformedBodyError(f"a trace has {text[:40]!r} where a number belongs")
    return int(text)


def _flag(text: str) -> bool:
    return text.lower() == "true"


Member = TypeVar("Member", bound=IntEnum)


def _member(kind: type[Member], text: str) -> Member:
    try:
        return kind(_number(text))
    except ValueError:
        raise MalformedBodyError(f"a trace has {kind.__name__} {text}, which is none") from None
