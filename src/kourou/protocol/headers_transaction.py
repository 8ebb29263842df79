"""Headers for transactions: codes 37, 39 and 323.

Source: EndTransactionRequestHeader.java, CheckTransactionStateRequestHeader.java,
ResumeCheckHalfMessageRequestHeader.java.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fields import Int, Long
from kourou.protocol.headers_send import RpcHeader


@dataclass(slots=True)
class EndTransactionRequestHeader(RpcHeader):
    """END_TRANSACTION (37): commit or roll back a half message; Java sends it one-way.

    Attributes:
        tran_state_table_offset: the half message's queue offset.
        commit_log_offset: its physical offset.
        commit_or_rollback: 8 commit, 12 rollback, 0 unknown; bits of `kourou.model.sysflag`.
        from_transaction_check: the request answers a check (39).
        msg_id: the unique id.
    """

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    topic: str | None = None
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


@dataclass(slots=True)
class CheckTransactionStateRequestHeader(RpcHeader):
    """CHECK_TRANSACTION_STATE (39), broker to producer, one-way; the body is the half message."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


@dataclass(slots=True)
class ResumeCheckHalfMessageRequestHeader:
    """RESUME_CHECK_HALF_MESSAGE (323): restart the checks of a half message.

    Attributes:
        msg_id: the offset message id.
    """

    msg_id: str | None = None
    topic: str | None = None
