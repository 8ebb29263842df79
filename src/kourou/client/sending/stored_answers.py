"""The answers of brokers that have stored a message: taken in one loop, straight from a read.

Nearly all answers to first tries say "stored", in a header without a body, and many come in one
read. Of such a header three fields and a number matter. This reads no others, makes the receipts,
and counts and gives back what belongs to all of the read once. Any doubt about a frame leaves it to
the ordinary way (`FirstTry.on_answer`), which alone is complete; both must come to the same end.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from kourou.client.send_receipt import Durability, stored_receipt
from kourou.client.sending.first_try import FirstTry
from kourou.protocol.command import FLAG_RESPONSE
from kourou.remoting.connection import Connection

_unpack_sizes: Final = struct.Struct(">II").unpack_from
_HEADER_AT: Final = 8
_SIZE_SIZE: Final = 4
_OFFSET_DIGITS_MAX: Final = 18
_ANSWER_BYTES_MAX: Final = 4_096
"""A longer one is odd."""

_DURABILITIES: Final = {durability.value: durability for durability in Durability}
_ODD: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Stored(msgspec.Struct, gc=False):
    """The fields that matter; see `SendMessageResponseHeader`."""

    msgId: str  # noqa: N815 - wire name
    queueId: str  # noqa: N815 - wire name
    queueOffset: str  # noqa: N815 - wire name
    KOUROU_DURABILITY: str = ""
    recallHandle: str = ""  # noqa: N815 - wire name


class _Answer(msgspec.Struct, gc=False):
    """The members that matter, without defaults where ours and Java's brokers always write them."""

    extFields: _Stored  # noqa: N815 - wire name
    flag: int
    opaque: int
    code: int


_decode: Final = msgspec.json.Decoder(_Answer).decode


def take_stored(connection: Connection, buffer: bytearray, at: int, end: int) -> int:
    """End the first tries that the frames from `at` on say are stored; return where it stopped.

    A `FastPath` for the connections of one producer.
    """
    waiting: dict[int, Any] = connection.pending.waiting
    size_max = min(_ANSWER_BYTES_MAX, connection.limits.frame_bytes_max)
    now_s = connection.last_received_s
    last: FirstTry | None = None
    freed = freed_bytes = count = 0
    sum_s = max_s = 0.0
    while end - at > _HEADER_AT:
        size, header_size = _unpack_sizes(buffer, at)
        next_at = at + _SIZE_SIZE + size
        # The header's size has the kind of header in its top byte: JSON's is 0.
        if next_at > end or header_size + _SIZE_SIZE != size or size > size_max:
            break
        try:
            answer = _decode(buffer[at + _HEADER_AT : next_at])
        except _ODD:
            break
        fields, opaque = answer.extFields, answer.opaque
        place, offset = fields.msgId, fields.queueOffset
        first = waiting.get(opaque)
        if (
            answer.code
            or answer.flag != FLAG_RESPONSE
            or type(first) is not FirstTry
            or "," in place
            or fields.recallHandle
            or fields.queueId != str(first.queue.queue_id)  # type: ignore[union-attr]
            or not (offset.isascii() and offset.isdigit() and len(offset) <= _OFFSET_DIGITS_MAX)
        ):
            break
        waiting.pop(opaque).tick.pop(opaque, None)
        durability = _DURABILITIES.get(fields.KOUROU_DURABILITY, Durability.UNKNOWN)
        queue: Any = first.queue
        first.set_result(stored_receipt(first.msg_id, place, queue, int(offset), durability))
        if last is not None and first.places is not last.places:
            last.places.release(freed_bytes, freed)
            freed = freed_bytes = 0
        last = first
        freed += 1
        freed_bytes += len(first.message.body)
        elapsed_s = now_s - first.began_s
        sum_s += elapsed_s
        if elapsed_s > max_s:  # noqa: PLR1730 - `max` costs three times as much
            max_s = elapsed_s
        count += 1
        at = next_at
    if last is not None:
        last.places.release(freed_bytes, freed)
        last.tries.stats.on_stored_apart(count, sum_s, max_s, now_s)
    return at
