"""What takes a message back that waits to be delivered at a time: the answer to its send has it.

The text is `v1 <topic> <broker name> <time> <unique id>` in URL-safe base64, padded; the time is a
millisecond more than the second before the message's time, in epoch milliseconds.

Source: RecallMessageHandle.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from kourou.errors import UsageError

_VERSION: Final = "v1"
_PARTS: Final = 5


class RecallHandle(NamedTuple):
    """The parts of a handle; `time` is the text that it has, which need not be a number."""

    topic: str
    broker_name: str
    time: str
    unique_id: str

    def encode(self) -> str:
        """Return the text that a broker gives out."""
        return base64.urlsafe_b64encode(" ".join((_VERSION, *self)).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Return the parts of a handle; its padding may be missing.

    Raises:
        UsageError: it is none.
    """
    if text is None:
        raise UsageError("recall handle is None: the message was sent without a time to wait for")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        parts = data.decode().split(" ")
    except (binascii.Error, ValueError):
        parts = []
    if len(parts) < _PARTS or parts[0] != _VERSION:
        raise UsageError(
            f"recall handle is invalid: {text[:80]!r} is none; give what the answer to the send had"
        )
    return RecallHandle(*parts[1:_PARTS])
