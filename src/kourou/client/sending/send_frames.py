"""The frame of a plain send, made from a template in place of a header, a dict and an encoder.

Of the requests that one producer sends to one topic of one broker, five values differ, and the
body. The ordinary encoder writes such a request once, with marks in their place; what stands
between the marks is the template. So it cannot say anything else than the ordinary encoder does,
and takes a tenth of its time.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from kourou.client.calls_send import Outgoing, send_command
from kourou.model.queue import MessageQueue
from kourou.protocol.frame import FRAME_SIZE_MAX, FRAME_SIZE_MIN, encode_frame

_SIZES: Final = struct.Struct(">II")
_HEADER_AT: Final = 8

_MARKS: Final = (2_147_483_629, 8_191_919_191_919_191_919, -2_147_483_587, 2_147_483_543)
"""Queue, time of birth, flag and opaque, none of which occurs within another."""

_PROPERTIES_MARK: Final = "\x7f properties \x7f"  # no name of a topic, group or broker has blanks

_encode_text: Final = msgspec.json.Encoder().encode


class SendFrames:
    """Makes the frames of plain messages, neither compressed nor batched, for one topic and broker.

    Args:
        group: the producer's.
        topic: the messages'.
        broker_name: of the queues.
        default_queue_nums: as `send_command` takes it.

    Attributes:
        is_usable: False if a name has one of the marks within it: then this makes no frames.
    """

    def __init__(self, group: str, topic: str, broker_name: str, default_queue_nums: int) -> None:
        queue_id, born_at_ms, flag, opaque = _MARKS
        queue = MessageQueue(topic, broker_name, queue_id)
        outgoing = Outgoing(topic, (), b"", _PROPERTIES_MARK, flag)
        command = send_command(outgoing, queue, group, born_at_ms, default_queue_nums)
        command.opaque = opaque
        text = encode_frame(command)[_HEADER_AT:].replace(b"%", b"%%")
        marks = {b"%d" % number: b"%d" for number in _MARKS}
        marks[_encode_text(_PROPERTIES_MARK)] = b"%b"
        self.is_usable = all(text.count(mark) == 1 for mark in marks)
        for mark, hole in marks.items():
            text = text.replace(mark, hole)
        self._template = text

    def frame(
        self, queue_id: int, born_at_ms: int, flag: int, properties: bytes, opaque: int, body: bytes
    ) -> bytes | None:
        """Return the whole frame; None if it is larger than peers take.

        `properties` is what `property_json` returned.
        """
        header = self._template % (queue_id, born_at_ms, flag, properties, opaque)
        header_size = len(header)
        size = FRAME_SIZE_MIN + header_size + len(body)
        if size > FRAME_SIZE_MAX:
            return None
        return b"".join((_SIZES.pack(size, header_size), header, body))


def property_json(text: str) -> bytes:
    """Return property text as it stands in the header, quoted and escaped.

    Raises:
        UnicodeEncodeError: it is no valid Unicode text (a lone surrogate).
    """
    return _encode_text(text)
