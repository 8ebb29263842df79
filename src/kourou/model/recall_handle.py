"""Recall handle: identifies a scheduled message so that it can be cancelled; returned by send.

The text is `v1 <topic> <broker name> <time> <unique id>` in URL-safe base64, padded. The time is
the record's TIMER_OUT_MS (the second before its delivery time, in epoch milliseconds) plus 1.

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
    """Fields of a handle; `time` is a text, which is not checked to be a number."""

    topic: str
    broker_name: str
    time: str
    unique_id: str

    def encode(self) -> str:
        """Return the text of the handle."""
        return base64.urlsafe_b64encode(" ".join((_VERSION, *self)).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Return the fields of a handle; the padding may be missing.

    Raises:
        UsageError: the text is None or not a handle.
    """
    if text is None:
        raise UsageError("recall handle is None: the message was sent without a delivery time")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        parts = data.decode().split(" ")
    except (binascii.Error, ValueError):
        parts = []
    if len(parts) < _PARTS or parts[0] != _VERSION:
        raise UsageError(
            f"recall handle is invalid: {text[:80]!r}; pass the recall_handle returned by send"
        )
    return RecallHandle(*parts[1:_PARTS])
