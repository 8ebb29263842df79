"""Receipt handles of clients: the broker's handle and the message's commit log offset.

The offset lets the proxy send a message back to its broker. Source: ConsumerProcessor.java,
AbstractProcessor.java, ReceiptHandle.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kourou.errors import CallRefusedError, MalformedHeaderError
from kourou.protocol.popping.receipt_handles import ReceiptHandle, decode_receipt_handle
from kourou.proxy.pb.v2 import Code
from kourou.proxy.status import proxy_refusal

_PREFIXES_MAX: Final = 4_096


def handle_text(receipt: ReceiptHandle, offset: int, commit_log_offset: int) -> str:
    """Return the handle of a popped message.

    Args:
        receipt: of the pop; messages of one queue may share it.
        offset: queue offset of the message.
        commit_log_offset: physical offset of the message.
    """
    if receipt.offset is None:
        return f"{_prefix(receipt)} {offset} {commit_log_offset}"
    return receipt._replace(offset=offset, commit_log_offset=commit_log_offset).encode()


@lru_cache(_PREFIXES_MAX)
def _prefix(receipt: ReceiptHandle) -> str:
    """Return what the handles of one checkpoint's messages begin with."""
    return receipt._replace(commit_log_offset=None).encode()


def read_handle(text: str) -> ReceiptHandle:
    """Return the fields of a client's handle.

    Raises:
        CallRefusedError: INTERNAL_SERVER_ERROR; the text is not a handle, or has no queue offset.
    """
    try:
        receipt = decode_receipt_handle(text)
    except MalformedHeaderError as error:
        raise CallRefusedError(Code.INTERNAL_SERVER_ERROR, str(error)) from None
    if receipt.offset is None:
        raise CallRefusedError(
            Code.INTERNAL_SERVER_ERROR,
            f"receipt handle is invalid: {text[:80]!r}: it has no queue offset; pass the handle "
            "that the message was received with",
        )
    return receipt


def check_not_expired(receipt: ReceiptHandle, now_ms: int) -> None:
    """Refuse a handle whose message is visible again.

    Raises:
        CallRefusedError: INVALID_RECEIPT_HANDLE.
    """
    if receipt.revive_at_ms <= now_ms:
        raise proxy_refusal(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")


def send_back_offset(receipt: ReceiptHandle) -> int:
    """Return the commit log offset, by which a message becomes a dead letter.

    Raises:
        CallRefusedError: INVALID_RECEIPT_HANDLE; the handle lacks it.
    """
    if receipt.commit_log_offset is None or receipt.commit_log_offset < 0:
        raise proxy_refusal(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
    return receipt.commit_log_offset
