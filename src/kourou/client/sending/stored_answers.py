"""Fast path of answers to sends: decodes all successful answers of one read in a loop.

Nearly all answers to first tries report success, in a header without a body, and one read often
contains many of them. This loop decodes only the needed fields and creates the receipts; statistics
and in-flight counters are updated once for the whole read. A frame that deviates in any way is left
to the general path (`FirstTry.on_answer`), which handles all answers. Both paths must give the same
result.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kourou.client.send_receipt import COPIES, Durability, stored_receipt
from kourou.client.sending.first_try import FirstTry
from kourou.decimals import is_decimal
from kourou.protocol.command import FLAG_RESPONSE
from kourou.protocol.frame import HEADER_AT, bare_frame_end
from kourou.remoting.connection import Connection

_ANSWER_BYTES_MAX: Final = 4_096
"""Longer answers are left to the general path."""

_DURABILITIES: Final = {durability.value: durability for durability in Durability}
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Stored(msgspec.Struct, gc=False):
    """The decoded fields; see `SendMessageResponseHeader`."""

    msgId: str  # noqa: N815 - wire name
    queueId: str  # noqa: N815 - wire name
    queueOffset: str  # noqa: N815 - wire name
    KOUROU_DURABILITY: str = ""
    KOUROU_COPIES: str = ""
    recallHandle: str = ""  # noqa: N815 - wire name


class _Answer(msgspec.Struct, gc=False):
    """The decoded members. Kourou's and Java's brokers always write them, so none has a default."""

    extFields: _Stored  # noqa: N815 - wire name
    flag: int
    opaque: int
    code: int


_decode: Final = msgspec.json.Decoder(_Answer).decode


def complete_stored(connection: Connection, buffer: bytearray, at: int, end: int) -> int:
    """Complete the first tries whose answers in the frames from byte `at` on report success.

    Returns the position of the first frame that was not processed. This is the `FastPath` of a
    producer's connections.
    """
    waiting: dict[int, Any] = connection.pending.by_opaque
    size_max = min(_ANSWER_BYTES_MAX, connection.limits.frame_bytes_max)
    now_s = connection.last_received_s
    last: FirstTry | None = None
    released = released_bytes = count = 0
    sum_s = max_s = 0.0
    while next_at := bare_frame_end(buffer, at, end, size_max):
        try:
            answer = _decode(buffer[at + HEADER_AT : next_at])
        except _MALFORMED:
            break
        fields, opaque = answer.extFields, answer.opaque
        offset_id, offset = fields.msgId, fields.queueOffset
        first = waiting.get(opaque)
        if (
            answer.code
            or answer.flag != FLAG_RESPONSE
            or type(first) is not FirstTry
            or "," in offset_id
            or fields.recallHandle
            or fields.queueId != str(first.queue.queue_id)  # type: ignore[union-attr]
            or not is_decimal(offset)
        ):
            break
        waiting.pop(opaque).tick.pop(opaque, None)
        durability = _DURABILITIES.get(fields.KOUROU_DURABILITY, Durability.UNKNOWN)
        queue: Any = first.queue
        copies = COPIES.get(fields.KOUROU_COPIES)
        first.set_result(
            stored_receipt(first.msg_id, offset_id, queue, int(offset), durability, copies)
        )
        if last is not None and first.counter is not last.counter:
            last.counter.release(released_bytes, released)
            released = released_bytes = 0
        last = first
        released += 1
        released_bytes += len(first.message.body)
        elapsed_s = now_s - first.began_s
        sum_s += elapsed_s
        if elapsed_s > max_s:  # noqa: PLR1730 - `max` costs three times as much
            max_s = elapsed_s
        count += 1
        at = next_at
    if last is not None:
        last.counter.release(released_bytes, released)
        last.tries.stats.on_stored_separately(count, sum_s, max_s, now_s)
    return at
