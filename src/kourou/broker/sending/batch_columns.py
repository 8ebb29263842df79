"""Columnar decoding of batch bodies for the fast path of batches.

Source: see `kourou.protocol.message_batch`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Final, NamedTuple

from kourou.broker.sending.batch_layouts import layout
from kourou.broker.sending.plain_shapes import (
    CUT_OUT,
    KEYS,
    SHAPE_LENGTH_MAX,
    UNIQ_KEY,
    UNIQ_KEY_CHARS,
    Shapes,
)
from kourou.broker.sending.verdicts import judge_batched
from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.protocol.hashing import tags_code
from kourou.protocol.message_batch import ENTRY_BYTES_MIN, ENTRY_HEAD, PROPERTIES_SIZE
from kourou.protocol.record.encode import SEALED_BYTES, RecordColumns, sealed_properties_size
from kourou.protocol.record.keys import queue_tags_code
from kourou.store.index.index_feed import ID_HEAD_CHARS

_UNIQ_KEY: Final = UNIQ_KEY.encode()
_KEYS: Final = KEYS.encode()
_FORMS_MAX: Final = 1024
_PARSED_BYTES_MAX: Final = 128 * 1024
"""Limit on the bytes of properties that are parsed for one batch: 20 ms at most. A batch is left to
the general path, which parses none, once more than `_PARSED_BYTES_MIN` bytes were parsed and the
total extrapolated from them exceeds this limit."""
_PARSED_BYTES_MIN: Final = 16 * 1024
_LEARNED_PARSES: Final = 2
"""Parses within one batch after which a pattern is compiled: one form is parsed once only."""
_FREE_VALUE: Final = rb"[^\x01\x02\x80-\xff]+"
_UNIQ_KEY_VALUE: Final = rb"[0-9A-Za-z]{%d}" % UNIQ_KEY_CHARS
_Shape = tuple[int, str]
"""Tag hash and tags, shared by all messages whose properties differ only in unique id and keys."""
_NO_TAGS: Final[_Shape] = 0, ""
_Pieces = tuple[bytes, bytes, bytes, bytes, bytes]
"""Properties cut into: before, first value, between, second value, after. The two values are the
unique id and the keys, in the order in which they occur."""


class BatchColumns(NamedTuple):
    """The messages of a batch, column by column; all columns are in the order of the batch.

    Attributes:
        records: what their records consist of.
        codes: tag hashes for the queue entries.
        id_head, id_tails: unique ids of all messages in the form of `FedBatch`; empty if any
            message has none.
        tags: the tags of each message, or one entry that all share; "" for none.
        keys: the keys property of each message, "" for none; empty if no message has keys.
    """

    records: RecordColumns
    codes: Sequence[int]
    id_head: bytes
    id_tails: bytes
    tags: Sequence[str]
    keys: Sequence[str]


_NO_ID, _NO_KEYS, _KEYS_AFTER, _KEYS_BEFORE = range(4)


class _Form(NamedTuple):
    """Properties of messages that differ only in body, unique id and keys.

    A form without a unique id applies only to messages with exactly the same properties.

    Attributes:
        code: hash of the tags.
        start: stored size of the properties, and the bytes before the unique id and the keys.
        between, end: bytes between the unique id and the keys, and after both.
        tags: the tags property; "" for none.
        kind: presence of a unique id, and the position of the keys relative to it.
    """

    code: int
    start: bytes
    between: bytes
    end: bytes
    tags: str
    kind: int


class _Pattern(NamedTuple):
    """Properties that have the same names in the same order.

    Their values decide nothing except for the tags (see `judge_batched`). Messages with an order
    number each, for example, are of one pattern, but all of different forms.

    Attributes:
        match: returns the match of the properties from a position on, with the groups `id`, `keys`
            and `tags` as far as they are present.
        kind: as that of a form.
        has_tags: there are tags.
    """

    match: Callable[[bytes, int], re.Match[bytes] | None]
    kind: int
    has_tags: bool


_Found = tuple[_Form, bytes, bytes]
"""The form of a message, and its values of unique id and keys in order; empty where absent."""
_Row = tuple[int, int, int, bytes, bytes, bytes]
"""Record size, body size, flag and body of a message, and its values of unique id and keys in
order."""


class BatchReader:
    """Decodes batch bodies, and caches the forms of properties that recur."""

    def __init__(self) -> None:
        # Cuts are keyed by the size of the properties and their size field together, forms by the
        # constant pieces.
        self._cuts: dict[int, Callable[[bytes], _Pieces]] = {}
        self._forms: dict[tuple[bytes, bytes, bytes], _Form] = {}
        self._shapes = Shapes(_shape)
        self._pattern = _Pattern(re.compile(rb"(?!)").fullmatch, _NO_ID, has_tags=False)

    @property
    def shape_count(self) -> int:
        """Number of cached shapes, of both generations."""
        return len(self._shapes) + len(self._shapes.older)

    @property
    def layout_count(self) -> int:
        """Number of cached forms or cuts, whichever is greater."""
        return max(len(self._forms), len(self._cuts))

    def read(self, body: memoryview, topic_bytes: bytes, messages_max: int) -> BatchColumns | None:
        """Return the messages of the body; None if the general path must decode it.

        Args:
            body: body of the batch.
            topic_bytes: size and name of the topic as encoded in records.
            messages_max: a body with more messages is left to the general path.
        """
        if len(body) < ENTRY_BYTES_MIN:
            return None
        size, flag, body_size = ENTRY_HEAD.unpack_from(body)
        if body_size < 0 or size < ENTRY_BYTES_MIN + body_size or size > len(body):
            return None
        if len(body) <= size * messages_max:
            columns = self._read_uniform(body, topic_bytes, size, flag, body_size)
            if columns is not None:
                return columns
        return self._read_mixed(body, topic_bytes, messages_max)

    def _read_uniform(
        self, body: memoryview, topic_bytes: bytes, size: int, flag: int, body_size: int
    ) -> BatchColumns | None:
        """Return the messages if they differ only in body and unique id; None otherwise.

        This is the common case: most programs send messages of one form. It takes a third of the
        time of `_read_mixed`: only bodies and ids are extracted, the rest is compared in one step.
        """
        count, rest = divmod(len(body), size)
        if rest:
            return None
        text = bytes(body[ENTRY_HEAD.size + body_size : size])
        found = self._form_of(text)
        if found is None or found[0].kind != _NO_KEYS:
            return None
        form = found[0]
        text_size, id_at = len(text), len(form.start)
        # The first head, then each body followed by its properties and the next head.
        form_of_all = f"{ENTRY_HEAD.size}s" + f"{body_size}s{text_size + ENTRY_HEAD.size}s" * (
            count - 1
        )
        parts = layout(f"{form_of_all}{body_size}s{text_size}s").unpack(body)
        bodies, others = parts[1::2], b"".join(parts[::2])
        after = text[id_at + UNIQ_KEY_CHARS :]
        for head_size in (ID_HEAD_CHARS, 0):
            head = text[id_at : id_at + head_size]
            before = bytes(body[: ENTRY_HEAD.size]) + text[: id_at + head_size]
            rest_size = UNIQ_KEY_CHARS - head_size
            rests = layout(f"{len(before)}x{rest_size}s{len(after)}x" * count).unpack(others)
            if others == before + (after + before).join(rests) + after:
                break
        else:
            return None
        id_tails = b"".join(rests)
        if not (head + id_tails).isalnum():
            return None
        start = topic_bytes + form.start + head
        total = SEALED_BYTES + body_size + len(topic_bytes) + text_size - PROPERTIES_SIZE.size
        return BatchColumns(
            RecordColumns(
                (total,) * count,
                (body_size,) * count,
                (flag,) * count,
                bodies,
                (repeat(start), rests, repeat(form.between)),
            ),
            (form.code,) * count,
            head,
            id_tails,
            (form.tags,),
            (),
        )

    def _read_mixed(
        self, body: memoryview, topic_bytes: bytes, messages_max: int
    ) -> BatchColumns | None:
        """Return messages of mixed forms: less than 1 us each, 3 us each if all forms differ."""
        data = bytes(body)
        at, end = 0, len(data)
        fixed = SEALED_BYTES + len(topic_bytes) - PROPERTIES_SIZE.size
        rows: list[_Row] = []
        found_forms: list[_Form] = []
        parsed_bytes = parses = 0
        cuts, forms, unpack = self._cuts, self._forms, ENTRY_HEAD.unpack_from
        while at < end:
            if end - at < ENTRY_BYTES_MIN or len(rows) >= messages_max:
                return None
            size, flag, body_size = unpack(data, at)
            body_at = at + ENTRY_HEAD.size
            at += size
            body_end = body_at + body_size
            if not body_at <= body_end <= at - 2 or at > end:
                return None
            text = data[body_end:at]
            try:
                before, first, between, second, after = cuts[len(text)](text)
                form = forms[before, between, after]
            except KeyError:
                found = self._match(text)
                if found is None:
                    parsed_bytes += len(text)
                    expected_bytes = parsed_bytes * end // at
                    if parsed_bytes > _PARSED_BYTES_MIN and expected_bytes > _PARSED_BYTES_MAX:
                        return None
                    found = self._parse(text)
                    if found is None:
                        return None
                    parses += 1
                    if parses == _LEARNED_PARSES and len(text) <= SHAPE_LENGTH_MAX:
                        self._pattern = _pattern(text, found[0].kind)
                form, first, second = found
            total = fixed + body_size + len(text)
            rows.append((total, body_size, flag, data[body_at:body_end], first, second))
            found_forms.append(form)
        return _columns(rows, found_forms, topic_bytes)

    def _form_of(self, text: bytes) -> _Found | None:
        """Return the form of a message and its values of unique id and keys.

        `text` is the size field and the properties as received. None if they are unusual.
        """
        cut = self._cuts.get(len(text))
        if cut is not None:
            before, first, between, second, after = cut(text)
            form = self._forms.get((before, between, after))
            if form is not None:
                return form, first, second
        return self._parse(text)

    def _match(self, text: bytes) -> _Found | None:
        """Return the same as `_parse` if the last pattern matches; None otherwise."""
        match, kind, has_tags = self._pattern
        found, size = match(text, 2), len(text) - 2
        if (
            found is None
            or size > SENT_PROPERTIES_SIZE_MAX
            or PROPERTIES_SIZE.unpack_from(text)[0] != size
        ):
            return None
        code, tags = _tags_shape(found["tags"]) if has_tags else _NO_TAGS
        stored_size = sealed_properties_size(size)
        if kind == _NO_ID:
            return _Form(code, stored_size + text[2:], b"", b"", tags, kind), b"", b""
        at, end = found.span("id")
        if kind == _NO_KEYS:
            form = _Form(code, stored_size + text[2:at], text[end:], b"", tags, kind)
            return form, text[at:end], b""
        spans = sorted(((at, end), found.span("keys")))
        (first_at, first_end), (second_at, second_end) = spans
        start, between = stored_size + text[2:first_at], text[first_end:second_at]
        form = _Form(code, start, between, text[second_end:], tags, kind)
        return form, text[first_at:first_end], text[second_at:second_end]

    def _parse(self, text: bytes) -> _Found | None:
        """Parse `text`, return the same as `_form_of`, and cache the form."""
        size = len(text) - 2
        if size > SENT_PROPERTIES_SIZE_MAX or PROPERTIES_SIZE.unpack_from(text)[0] != size:
            return None
        id_at, id_end = _id_span(text)
        keys_at, keys_end = _keys_span(text)
        # Without unique id and keys, the properties mostly equal those of the previous message.
        spans = sorted(((id_at - len(_UNIQ_KEY), id_end), (keys_at - len(_KEYS), keys_end)))
        rest, at = b"", 2
        for start, end in spans:
            if end:
                rest += text[at:start]
                at = end + 1
        shape = self._shapes[rest + text[at:]]
        if shape is None:
            return None
        code, tags = shape
        stored_size = sealed_properties_size(size)
        if not id_end:
            return _Form(code, stored_size + text[2:], b"", b"", tags, _NO_ID), b"", b""
        kind, spans_in_order = _NO_KEYS, (id_at, id_end, len(text), len(text))
        if keys_end:
            kind, spans_in_order = _KEYS_AFTER, (id_at, id_end, keys_at, keys_end)
            if keys_at < id_at:
                kind, spans_in_order = _KEYS_BEFORE, (keys_at, keys_end, id_at, id_end)
        sizes = [b - a for a, b in pairwise((0, *spans_in_order, len(text)))]
        cut = struct.Struct("".join([f"{length}s" for length in sizes])).unpack
        before, first, between, second, after = cut(text)
        form = _Form(code, stored_size + before[2:], between, after, tags, kind)
        if size <= SHAPE_LENGTH_MAX:
            if len(self._forms) >= _FORMS_MAX or len(self._cuts) >= _FORMS_MAX:
                self._forms.clear()
                self._cuts.clear()
            self._cuts[len(text)] = cut
            self._forms[before, between, after] = form
        return form, first, second


def _pattern(text: bytes, kind: int) -> _Pattern:
    """Return the pattern of a size field and properties whose form is of this kind."""
    groups = {names.TAGS.encode(): b"tags"}
    if kind != _NO_ID:
        groups[_UNIQ_KEY[:-1]] = b"id"
    if kind in (_KEYS_AFTER, _KEYS_BEFORE):
        groups[_KEYS[:-1]] = b"keys"
    entries = []
    for entry in text[2:-1].split(b"\x02"):
        name = entry.partition(b"\x01")[0]
        group = groups.get(name)
        value = _UNIQ_KEY_VALUE if group == b"id" else _FREE_VALUE
        accepted = value if group is None else b"(?P<%b>%b)" % (group, value)
        entries.append(b"%b\x01%b\x02" % (re.escape(name), accepted))
    match = re.compile(b"".join(entries))
    return _Pattern(match.fullmatch, kind, "tags" in match.groupindex)


@lru_cache(_FORMS_MAX)
def _tags_shape(tags: bytes) -> _Shape:
    return tags_code(tags.decode()), tags.decode()


def _columns(
    rows: Sequence[_Row], forms: Sequence[_Form], topic_bytes: bytes
) -> BatchColumns | None:
    """Return the columns of messages of these forms; None if a message does not match its form."""
    sizes, body_sizes, flags, bodies, firsts, seconds = zip(*rows, strict=True)
    codes, starts, betweens, ends, tags, kinds = zip(*forms, strict=True)
    ids, keys = firsts, seconds
    if _KEYS_BEFORE in kinds:
        pairs = [
            (second, first) if kind == _KEYS_BEFORE else (first, second)
            for first, second, kind in zip(firsts, seconds, kinds, strict=True)
        ]
        ids, keys = zip(*pairs, strict=True)
    unique_ids = b"".join(ids)
    all_keys = b"\x02".join(keys)
    if unique_ids and not unique_ids.isalnum():
        return None
    if all_keys.count(b"\x02") != len(keys) - 1 or b"\x01" in all_keys or not all_keys.isascii():
        return None  # the bytes cut out as keys contain a separator, so they are not a keys value
    head, id_tails = b"", unique_ids if len(unique_ids) == UNIQ_KEY_CHARS * len(ids) else b""
    if id_tails:
        cut = layout(f"{ID_HEAD_CHARS}s{UNIQ_KEY_CHARS - ID_HEAD_CHARS}s" * len(ids))
        parts = cut.unpack(id_tails)
        if parts[::2].count(parts[0]) == len(ids):
            head, id_tails = parts[0], b"".join(parts[1::2])
    return BatchColumns(
        RecordColumns(
            sizes,
            body_sizes,
            flags,
            bodies,
            (repeat(topic_bytes), starts, firsts, betweens, seconds, ends),
        ),
        codes,
        head,
        id_tails,
        tags if tags.count(tags[0]) < len(tags) else tags[:1],
        all_keys.decode().split("\x02") if any(keys) else (),
    )


def _id_span(text: bytes) -> tuple[int, int]:
    """Return start and end of the unique id in a size field and properties; zeros if absent."""
    at = text.find(_UNIQ_KEY, 2) + len(_UNIQ_KEY)
    end = at + UNIQ_KEY_CHARS
    before = at - len(_UNIQ_KEY) - 1
    is_present = (before == 1 or (before > 1 and text[before] == 2)) and text[
        end : end + 1
    ] == b"\x02"
    return (at, end) if is_present and text[at:end].isalnum() else (0, 0)


def _keys_span(text: bytes) -> tuple[int, int]:
    """Return start and end of the keys in a size field and properties; zeros if absent."""
    at = text.find(_KEYS, 2) + len(_KEYS)
    before = at - len(_KEYS) - 1
    end = text.find(b"\x02", at)
    keys = text[at:end]
    is_present = (before == 1 or (before > 1 and text[before] == 2)) and end > at
    return (at, end) if is_present and keys.isascii() and b"\x01" not in keys else (0, 0)


def _shape(rest: bytes) -> _Shape | None:
    """Return the shape of properties without unique id and keys; None if they are unusual.

    A text that the general path might store differently is unusual too.
    """
    properties = decode_properties(rest)
    if (
        encode_properties(properties) != rest
        or not CUT_OUT.isdisjoint(properties)
        or not judge_batched(properties).is_unchanged
    ):
        return None
    return queue_tags_code(b"", rest, 0, ()), properties.get(names.TAGS, "")
