r"""Codec of trace records, which clients write into the bodies of trace messages.

A body is a sequence of records. Fields are joined by \x01, records end with \x02. A missing value
is the text `null`, a flag is `true` or `false`:

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
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from kourou.errors import MalformedBodyError

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"

_NULL: Final = "null"
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_SEPARATORS_TO_BLANKS: Final = str.maketrans({FIELD_END: " ", RECORD_END: " "})


class TracedKind(IntEnum):
    """Kind of a traced message."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class TracedOutcome(IntEnum):
    """Outcome of a listener call."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NOTHING = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTrace:
    """A message was sent (Pub).

    Attributes:
        at_ms: start of the send in epoch milliseconds.
        cost_ms: duration of the send in milliseconds.
        region: that of the broker.
        group: that of the producer.
        msg_id: the unique id.
        keys: joined by blanks.
        store_host: `host:port` of the broker.
        body_bytes: size of the body as sent, compressed or not.
        is_success: whether the response was SEND_OK.
        client_host: the producer's address, if the reader of a trace added it.
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
        request_id: identifies this call; the `ConsumedTrace` of the call has the same id.
        retries: number of times that the message was sent back before.
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
    """A listener call has ended (SubAfter).

    Attributes:
        cost_ms: duration of the call in milliseconds, divided by the number of its messages.
        at_ms: end of the call in epoch milliseconds; clients that omit it omit `group` as well.
        outcome: None if the client omits it.
    """

    request_id: str | None
    msg_id: str | None
    cost_ms: int = 0
    is_success: bool = True
    keys: str | None = None
    outcome: TracedOutcome | None = None
    at_ms: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEndTrace:
    """A half message was committed, rolled back or left open (EndTransaction).

    Attributes:
        state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
        is_from_check: whether it answered a check of the broker.
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
    """A delayed message was recalled, or the recall failed (Recall)."""

    at_ms: int
    region: str | None
    group: str | None
    topic: str | None
    msg_id: str | None
    is_success: bool = True


TraceRecord = SentTrace | ConsumingTrace | ConsumedTrace | TransactionEndTrace | RecallTrace


def encode_trace(record: TraceRecord) -> str:
    """Return the text of a record; separators within a value are replaced by blanks."""
    name = _NAMES[type(record)]
    layout = _LAYOUTS[name]
    texts = [name, *(_encode_value(getattr(record, field)) for field, _ in layout.fields)]
    pending_texts: list[str] = []
    for tail in layout.tails:
        values = [getattr(record, field) for field, _ in tail]
        pending_texts += map(_encode_value, values)
        if any(value is not None for value in values):
            texts += pending_texts
            pending_texts = []
    return FIELD_END.join(texts) + RECORD_END


def decode_traces(body: bytes) -> list[TraceRecord]:
    """Return the records in the body of a trace message; records of unknown types are omitted.

    Raises:
        MalformedBodyError: a record has too few fields, or a field must be a number but is not.
    """
    records: list[TraceRecord] = []
    for line in body.decode(errors="replace").split(RECORD_END):
        name, *texts = line.split(FIELD_END)
        layout = _LAYOUTS.get(name)
        if layout is not None:
            records.append(_decode(name, layout, texts))
    return records


def _decode(name: str, layout: _Layout, texts: list[str]) -> TraceRecord:
    field_count = len(layout.fields)
    if len(texts) < field_count:
        raise MalformedBodyError(
            f"a {name} trace has {len(texts) + 1} fields, not {field_count + 1}"
        )
    if name == "Pub" and len(texts) == field_count + 1:
        # Old clients write the flag without the offset id before it.
        texts.insert(field_count, _NULL)
    values = {field: read(text) for (field, read), text in zip(layout.fields, texts, strict=False)}
    at = field_count
    for tail in layout.tails:
        if len(texts) < at + len(tail):
            break
        values |= {field: read(texts[at + k]) for k, (field, read) in enumerate(tail)}
        at += len(tail)
    return layout.kind(**values)


def _encode_value(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    return str(value).translate(_SEPARATORS_TO_BLANKS) or _NULL


def _optional_text(text: str) -> str | None:
    return None if text in ("", _NULL) else text


def _parse_number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise MalformedBodyError(f"a trace has {text[:40]!r} in the place of a number")
    return int(text)


def _parse_flag(text: str) -> bool:
    return text.lower() == "true"


Member = TypeVar("Member", bound=IntEnum)


def _parse_member(kind: type[Member], text: str) -> Member:
    try:
        return kind(_parse_number(text))
    except ValueError:
        raise MalformedBodyError(f"a trace has an unknown {kind.__name__} {text}") from None


def _parse_kind(text: str) -> TracedKind:
    return _parse_member(TracedKind, text)


def _parse_outcome(text: str) -> TracedOutcome | None:
    return None if _optional_text(text) is None else _parse_member(TracedOutcome, text)


def _optional_number(text: str) -> int | None:
    return None if _optional_text(text) is None else _parse_number(text)


_Field = tuple[str, Callable[[str], object]]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The fields of a record behind its name, in order, each as attribute name and decoder.

    Attributes:
        tails: optional groups of fields. They are written up to the last one that has a value, and
            decoded as long as they are complete.
    """

    kind: Callable[..., TraceRecord]
    fields: tuple[_Field, ...]
    tails: tuple[tuple[_Field, ...], ...] = ()


_START_FIELDS: Final[tuple[_Field, ...]] = (
    ("at_ms", _parse_number),
    ("region", _optional_text),
    ("group", _optional_text),
)
_MESSAGE_FIELDS: Final[tuple[_Field, ...]] = (
    *_START_FIELDS,
    ("topic", _optional_text),
    ("msg_id", _optional_text),
)
_STORED_FIELDS: Final[tuple[_Field, ...]] = (
    *_MESSAGE_FIELDS,
    ("tags", _optional_text),
    ("keys", _optional_text),
    ("store_host", _optional_text),
)

_LAYOUTS: Final[dict[str, _Layout]] = {
    "Pub": _Layout(
        SentTrace,
        (
            *_STORED_FIELDS,
            ("body_bytes", _parse_number),
            ("cost_ms", _parse_number),
            ("kind", _parse_kind),
        ),
        (
            (("offset_msg_id", _optional_text), ("is_success", _parse_flag)),
            (("client_host", _optional_text),),
        ),
    ),
    "SubBefore": _Layout(
        ConsumingTrace,
        (
            *_START_FIELDS,
            ("request_id", _optional_text),
            ("msg_id", _optional_text),
            ("retries", _parse_number),
            ("keys", _optional_text),
        ),
    ),
    "SubAfter": _Layout(
        ConsumedTrace,
        (
            ("request_id", _optional_text),
            ("msg_id", _optional_text),
            ("cost_ms", _parse_number),
            ("is_success", _parse_flag),
            ("keys", _optional_text),
        ),
        ((("outcome", _parse_outcome),), (("at_ms", _optional_number), ("group", _optional_text))),
    ),
    "EndTransaction": _Layout(
        TransactionEndTrace,
        (
            *_STORED_FIELDS,
            ("kind", _parse_kind),
            ("transaction_id", _optional_text),
            ("state", _optional_text),
            ("is_from_check", _parse_flag),
        ),
    ),
    "Recall": _Layout(RecallTrace, (*_MESSAGE_FIELDS, ("is_success", _parse_flag))),
}
"""Layouts by the name that is the first field of a record."""

_NAMES: Final = {layout.kind: name for name, layout in _LAYOUTS.items()}
