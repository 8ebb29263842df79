"""The messages of a batch column by column, as the path of plain batches takes them.

Source: see `kourou.protocol.message_batch`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import Final, NamedTuple

from kourou.broker.sending.batch_layouts import layout
from kourou.broker.sending.plain_shapes import (
    KEYS,
    SHAPE_LENGTH_MAX,
    SPECIAL,
    UNIQ_KEY,
    UNIQ_KEY_CHARS,
    Shapes,
)
from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.protocol.message_layout import HEAD_V4
from kourou.store.index.index_feed import ID_HEAD_CHARS
from kourou.store.log.record_seal import SEAL_BYTES
from kourou.store.queues.dispatch import queue_tags_code

_ITEM: Final = struct.Struct(">i8xii")
"""Of a message in a batch: its size, its flag, and the size of its body."""
_ITEM_BYTES_MIN: Final = _ITEM.size + 2
_SIZE16: Final = struct.Struct(">H")
_UNIQ_KEY: Final = UNIQ_KEY.encode()
_KEYS: Final = KEYS.encode()
_FORMS_MAX: Final = 1024
_UNKNOWN_BYTES_MAX: Final = 128 * 1024
"""Properties of one batch that are decoded to find out their form: 20 ms at most. A batch whose
first 16 KiB of them let expect more is left to the general path, which decodes none."""
_UNKNOWN_BYTES_MIN: Final = 16 * 1024
_Shape = tuple[int, str]
"""Tag's hash and tags of all messages whose properties differ in id and keys only."""
_Pieces = tuple[bytes, bytes, bytes, bytes, bytes]
"""What is before, between and behind id and keys, with these."""


class BatchColumns(NamedTuple):
    """The messages of a batch, column by column.

    Attributes:
        sizes: of the records, with their seals; `body_sizes`, `flags` and `codes` as these have.
        bodies: in the same order, as all of these.
        tails: columns of what follows the bodies: from the topic's size to the seal.
        id_head, id_rests: unique ids of all, as `FedBatch` has them; empty if one has none.
        tags: as properties have them, of each or one for all; "" for none.
        keys: as properties have them, of each; "" for none; empty if none has any.
    """

    sizes: Sequence[int]
    body_sizes: Sequence[int]
    flags: Sequence[int]
    codes: Sequence[int]
    bodies: Sequence[bytes]
    tails: tuple[Iterable[bytes], ...]
    id_head: bytes
    id_rests: bytes
    tags: Sequence[str]
    keys: Sequence[str]


_NO_ID, _NO_KEYS, _KEYS_BEHIND, _KEYS_BEFORE = range(4)


class _Form(NamedTuple):
    """What messages have in common that differ in body, id and keys only.

    Without an id, nothing but a message of the same properties has it.

    Attributes:
        code: the tag's hash.
        start: the size of their properties as these are stored, and what is before id and keys.
        between, end: what is between the two, and behind them.
        kind: whether there is an id, and where the keys are.
    """

    code: int
    start: bytes
    between: bytes
    end: bytes
    tags: str
    kind: int


_Found = tuple[_Form, bytes, bytes]
"""A form, and of one message the first and the second of id and keys; empty if it lacks one."""
_Row = tuple[int, int, int, bytes, bytes, bytes]
"""Of one message: the size of its record and of its body, its flag, its body, and of id and keys
the first and the second."""


class BatchReader:
    """Reads the bodies of batches; keeps what it found out about messages that look the same."""

    def __init__(self) -> None:
        # By the size of properties, with that of their size: cuts them. And by what is constant.
        self._cuts: dict[int, Callable[[bytes], _Pieces]] = {}
        self._forms: dict[tuple[bytes, bytes, bytes], _Form] = {}
        self._shapes = Shapes(_shape)

    def read(self, body: memoryview, topic_part: bytes, messages_max: int) -> BatchColumns | None:
        """Return the messages of the body; None if something about them is unusual.

        Args:
            body: of the batch.
            topic_part: topic size and topic, as records have them.
            messages_max: a body of more is unusual.
        """
        if len(body) < _ITEM_BYTES_MIN:
            return None
        size, flag, body_size = _ITEM.unpack_from(body)
        if body_size < 0 or size < _ITEM_BYTES_MIN + body_size or size > len(body):
            return None
        if len(body) <= size * messages_max:
            columns = self._alike(body, topic_part, size, flag, body_size)
            if columns is not None:
                return columns
        return self._mixed(body, topic_part, messages_max)

    def _alike(
        self, body: memoryview, topic_part: bytes, size: int, flag: int, body_size: int
    ) -> BatchColumns | None:
        """Return messages that differ in body and id only, as those of one program mostly do.

        A third of the time of `_mixed`: only bodies and ids are taken out, and all else is compared
        at once.
        """
        count, rest = divmod(len(body), size)
        if rest:
            return None
        text = bytes(body[_ITEM.size + body_size : size])
        known = self._known(text)
        if known is None or known[0].kind != _NO_KEYS:
            return None
        form = known[0]
        text_size, id_at = len(text), len(form.start)
        # A head, and from then on bodies and what is between them, by turns.
        form_of_all = f"{_ITEM.size}s" + f"{body_size}s{text_size + _ITEM.size}s" * (count - 1)
        parts = layout(f"{form_of_all}{body_size}s{text_size}s").unpack(body)
        bodies, others = parts[1::2], b"".join(parts[::2])
        after = text[id_at + UNIQ_KEY_CHARS :]
        for head_size in (ID_HEAD_CHARS, 0):
            head = text[id_at : id_at + head_size]
            before = bytes(body[: _ITEM.size]) + text[: id_at + head_size]
            rest_size = UNIQ_KEY_CHARS - head_size
            rests = layout(f"{len(before)}x{rest_size}s{len(after)}x" * count).unpack(others)
            if others == before + (after + before).join(rests) + after:
                break
        else:
            return None
        id_rests = b"".join(rests)
        if not (head + id_rests).isalnum():
            return None
        start = topic_part + form.start + head
        total = HEAD_V4.size + body_size + len(topic_part) + text_size + SEAL_BYTES
        return BatchColumns(
            (total,) * count,
            (body_size,) * count,
            (flag,) * count,
            (form.code,) * count,
            bodies,
            (repeat(start), rests, repeat(form.between)),
            head,
            id_rests,
            (form.tags,),
            (),
        )

    def _mixed(self, body: memoryview, topic_part: bytes, messages_max: int) -> BatchColumns | None:
        """Return messages of any kind; less than 1 us each."""
        data = bytes(body)
        at, end = 0, len(data)
        fixed = HEAD_V4.size + len(topic_part) + SEAL_BYTES
        rows: list[_Row] = []
        found_forms: list[_Form] = []
        unknown_bytes = 0
        cuts, forms, unpack = self._cuts, self._forms, _ITEM.unpack_from
        while at < end:
            if end - at < _ITEM_BYTES_MIN or len(rows) >= messages_max:
                return None
            size, flag, body_size = unpack(data, at)
            body_at = at + _ITEM.size
            at += size
            body_end = body_at + body_size
            if not body_at <= body_end <= at - 2 or at > end:
                return None
            text = data[body_end:at]
            try:
                before, first, between, second, after = cuts[len(text)](text)
                form = forms[before, between, after]
            except KeyError:
                unknown_bytes += len(text)
                expected_bytes = unknown_bytes * end // at
                if unknown_bytes > _UNKNOWN_BYTES_MIN and expected_bytes > _UNKNOWN_BYTES_MAX:
                    return None
                found = self._find_out(text)
                if found is None:
                    return None
                form, first, second = found
            total = fixed + body_size + len(text)
            rows.append((total, body_size, flag, data[body_at:body_end], first, second))
            found_forms.append(form)
        return _columns(rows, found_forms, topic_part)

    def _known(self, text: bytes) -> _Found | None:
        """Return what others have in common with a message, and its first and second piece.

        `text`: its properties with their size before them, as they came. None if they are unusual.
        """
        cut = self._cuts.get(len(text))
        if cut is not None:
            before, first, between, second, after = cut(text)
            form = self._forms.get((before, between, after))
            if form is not None:
                return form, first, second
        return self._find_out(text)

    def _find_out(self, text: bytes) -> _Found | None:
        """Return what `_known` does, and know it from now on."""
        size = len(text) - 2
        if size > SENT_PROPERTIES_SIZE_MAX or _SIZE16.unpack_from(text)[0] != size:
            return None
        id_at, id_end = _id_place(text)
        keys_at, keys_end = _keys_place(text)
        # Without their id and keys, they are mostly those of the message before.
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
        stored_size = _SIZE16.pack(size + SEAL_BYTES)
        if not id_end:
            return _Form(code, stored_size + text[2:], b"", b"", tags, _NO_ID), b"", b""
        kind, places = _NO_KEYS, (id_at, id_end, len(text), len(text))
        if keys_end:
            kind, places = _KEYS_BEHIND, (id_at, id_end, keys_at, keys_end)
            if keys_at < id_at:
                kind, places = _KEYS_BEFORE, (keys_at, keys_end, id_at, id_end)
        sizes = [b - a for a, b in pairwise((0, *places, len(text)))]
        cut = struct.Struct("".join([f"{some}s" for some in sizes])).unpack
        before, first, between, second, after = cut(text)
        form = _Form(code, stored_size + before[2:], between, after, tags, kind)
        if size <= SHAPE_LENGTH_MAX:
            if len(self._forms) >= _FORMS_MAX or len(self._cuts) >= _FORMS_MAX:
                self._forms.clear()
                self._cuts.clear()
            self._cuts[len(text)] = cut
            self._forms[before, between, after] = form
        return form, first, second


def _columns(
    rows: Sequence[_Row], forms: Sequence[_Form], topic_part: bytes
) -> BatchColumns | None:
    """Return the columns of messages of these forms; None if one is not of its form."""
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
        return None  # something else was as long as the keys of others
    head, id_rests = b"", unique_ids if len(unique_ids) == UNIQ_KEY_CHARS * len(ids) else b""
    if id_rests:
        cut = layout(f"{ID_HEAD_CHARS}s{UNIQ_KEY_CHARS - ID_HEAD_CHARS}s" * len(ids))
        parts = cut.unpack(id_rests)
        if parts[::2].count(parts[0]) == len(ids):
            head, id_rests = parts[0], b"".join(parts[1::2])
    return BatchColumns(
        sizes,
        body_sizes,
        flags,
        codes,
        bodies,
        (repeat(topic_part), starts, firsts, betweens, seconds, ends),
        head,
        id_rests,
        tags if tags.count(tags[0]) < len(tags) else tags[:1],
        all_keys.decode().split("\x02") if any(keys) else (),
    )


def _id_place(text: bytes) -> tuple[int, int]:
    """Return where the unique id is in properties with their size before them; zeros if nowhere."""
    at = text.find(_UNIQ_KEY, 2) + len(_UNIQ_KEY)
    end = at + UNIQ_KEY_CHARS
    before = at - len(_UNIQ_KEY) - 1
    is_there = (before == 1 or (before > 1 and text[before] == 2)) and text[
        end : end + 1
    ] == b"\x02"
    return (at, end) if is_there and text[at:end].isalnum() else (0, 0)


def _keys_place(text: bytes) -> tuple[int, int]:
    """Return the same of the keys."""
    at = text.find(_KEYS, 2) + len(_KEYS)
    before = at - len(_KEYS) - 1
    end = text.find(b"\x02", at)
    keys = text[at:end]
    is_there = (before == 1 or (before > 1 and text[before] == 2)) and end > at
    return (at, end) if is_there and keys.isascii() and b"\x01" not in keys else (0, 0)


def _shape(rest: bytes) -> _Shape | None:
    """Return what properties mean that have neither id nor keys; None if they are unusual.

    Unusual is also a text that the ordinary path might not store as it is.
    """
    properties = decode_properties(rest)
    if encode_properties(properties) != rest or not SPECIAL.isdisjoint(properties):
        return None
    return queue_tags_code(b"", rest, 0, ()), properties.get(names.TAGS, "")
