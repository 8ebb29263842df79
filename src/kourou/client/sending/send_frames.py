"""Frame templates: encode plain sends without building a header and a command.

Requests that one producer sends to one topic of one broker differ in five header fields and in the
body. The general encoder writes such a request once, with a marker in each of these fields. The
template is this frame with the markers replaced by format specifiers. The frames are therefore the
same as those of the general encoder, and take a tenth of its time.
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

_MARKERS: Final = (2_147_483_629, 8_191_919_191_919_191_919, -2_147_483_587, 2_147_483_543)
"""Markers of queue id, born timestamp, flag and opaque; none contains another one."""

_PROPERTIES_MARKER: Final = "\x7f properties \x7f"  # no name of a topic, group or broker has blanks

_encode_text: Final = msgspec.json.Encoder().encode


class SendFrames:
    """Encoder of plain messages, neither compressed nor batched, for one topic and broker.

    Args:
        group: the producer group.
        topic: the topic.
        broker_name: the broker of the queues.
        default_queue_nums: as in `send_command`.

    Attributes:
        is_usable: False if a name contains a marker; `frame` must then not be called.
    """

    def __init__(self, group: str, topic: str, broker_name: str, default_queue_nums: int) -> None:
        queue_id, born_at_ms, flag, opaque = _MARKERS
        queue = MessageQueue(topic, broker_name, queue_id)
        outgoing = Outgoing(topic, (), b"", _PROPERTIES_MARKER, flag)
        command = send_command(outgoing, queue, group, born_at_ms, default_queue_nums)
        command.opaque = opaque
        text = encode_frame(command)[_HEADER_AT:].replace(b"%", b"%%")
        markers = {b"%d" % number: b"%d" for number in _MARKERS}
        markers[_encode_text(_PROPERTIES_MARKER)] = b"%b"
        self.is_usable = all(text.count(marker) == 1 for marker in markers)
        for marker, specifier in markers.items():
            text = text.replace(marker, specifier)
        self._template = text

    def frame(
        self, queue_id: int, born_at_ms: int, flag: int, properties: bytes, opaque: int, body: bytes
    ) -> bytes | None:
        """Return the complete frame; None if it exceeds the maximum frame size.

        `properties` is the result of `property_json`.
        """
        header = self._template % (queue_id, born_at_ms, flag, properties, opaque)
        header_size = len(header)
        size = FRAME_SIZE_MIN + header_size + len(body)
        if size > FRAME_SIZE_MAX:
            return None
        return b"".join((_SIZES.pack(size, header_size), header, body))


def property_json(text: str) -> bytes:
    """Return encoded properties as a JSON string for the header.

    Raises:
        UnicodeEncodeError: the text is not valid Unicode (a lone surrogate).
    """
    return _encode_text(text)
