"""Requests of transactions: half messages and ends.

Source: DefaultMQProducerImpl.sendMessageInTransaction, endTransaction and checkTransactionState.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kourou.client.calls_send import Outgoing, check_properties
from kourou.client.sending.transaction import END_CODES, Transaction, TransactionState
from kourou.errors import InvalidMessageError
from kourou.model import properties as names
from kourou.model.message import Message, MessageExt
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.sysflag import TRANSACTION_PREPARED
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.sending import CheckTransactionStateRequestHeader, EndTransactionRequestHeader

_DELAYS: Final = (
    names.DELAY,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_DELIVER_MS,
)


def check_half(message: Message) -> None:
    """Raise if a message cannot be sent in a transaction.

    Raises:
        InvalidMessageError: the message is delayed.
    """
    properties = message.to_properties()
    delays = [name for name in _DELAYS if name in properties]
    if delays:
        raise InvalidMessageError(
            f"transactional messages do not support delayed delivery: {delays[0]} is "
            f"{properties[delays[0]]}"
        )


def as_half(outgoing: Outgoing, group: str) -> Outgoing:
    """Return a message as a half message of the producer group.

    Raises:
        InvalidMessageError: the properties take more than 30,000 bytes.
    """
    text = f"{names.TRAN_MSG}\x01true\x02{names.PGROUP}\x01{group}\x02{outgoing.properties}"
    check_properties(outgoing.topic, text)
    return replace(outgoing, properties=text, sys_flag=outgoing.sys_flag | TRANSACTION_PREPARED)


def end_command(
    transaction: Transaction, group: str, state: TransactionState, *, oneway: bool, remark: str = ""
) -> RemotingCommand:
    """Return the request END_TRANSACTION (37) for a half message of this producer."""
    half = transaction.half
    header = EndTransactionRequestHeader(
        producer_group=group,
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=decode_offset_msg_id(half.offset_msg_id)[1],
        commit_or_rollback=END_CODES[state],
        topic=transaction.message.topic,
        from_transaction_check=False,
        msg_id=half.msg_id,
        transaction_id=half.msg_id,
        broker_name=half.queue.broker_name,
    )
    command = request(RequestCode.END_TRANSACTION, header, oneway=oneway)
    command.remark = remark or None
    return command


def check_answer_command(
    check: CheckTransactionStateRequestHeader,
    message: MessageExt,
    group: str,
    state: TransactionState,
    remark: str = "",
) -> RemotingCommand:
    """Return the request END_TRANSACTION (37) that answers a CHECK_TRANSACTION_STATE (39)."""
    unique_key = message.properties.get(names.UNIQ_KEY) or check.msg_id or ""
    header = EndTransactionRequestHeader(
        producer_group=group,
        tran_state_table_offset=check.tran_state_table_offset,
        commit_log_offset=check.commit_log_offset,
        commit_or_rollback=END_CODES[state],
        topic=check.topic,
        from_transaction_check=True,
        msg_id=unique_key,
        transaction_id=check.transaction_id,
        broker_name=check.broker_name,
    )
    command = request(RequestCode.END_TRANSACTION, header, oneway=True)
    command.remark = remark or None
    return command
