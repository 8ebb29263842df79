"""Calls of producers: SendMessage, EndTransaction, RecallMessage.

Source: SendMessageActivity.java, EndTransactionActivity.java, RecallMessageActivity.java,
TransactionService, apache/rocketmq 5.5.0, and recorded calls.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from kourou.client.calls_send import Outgoing, recalled_id, send_command
from kourou.errors import CallRefusedError, KourouError
from kourou.http2.calls import Call
from kourou.model import properties as names
from kourou.model import sysflag
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.properties import encode_properties
from kourou.model.queue import MessageQueue
from kourou.model.recall_handle import decode_recall_handle
from kourou.model.topic import is_retry_topic
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.record.decode import decode_message
from kourou.protocol.sending import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    RecallMessageRequestHeader,
    SendMessageResponseHeader,
)
from kourou.proxy.checks import (
    CallLimits,
    check_message,
    check_same_topic,
    check_sent_type,
    check_topic,
    check_type,
    is_blank,
)
from kourou.proxy.clients import ProxyClient
from kourou.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from kourou.proxy.convert import (
    SentMessage,
    received_message,
    send_result,
    sent_message,
    type_of,
)
from kourou.proxy.metadata import CallContext
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code, TransactionResolution, TransactionSource
from kourou.proxy.plain_sends import DEFAULT_QUEUES
from kourou.proxy.queue_choice import Turns, ordering_key, sending_queue
from kourou.proxy.status import combined_status, is_not_served, ok
from kourou.remoting.connection import Request
from kourou.remoting.network import format_address

TRANSACTION_S: Final = 30.0
"""Seconds in which a transaction can be ended after its send, or after a check of it."""
TRANSACTIONS_MAX: Final = 100_000
"""Open ones that are remembered; the oldest is forgotten first."""
_ENDS: Final[dict[int, int]] = {
    TransactionResolution.COMMIT: sysflag.TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: sysflag.TRANSACTION_ROLLBACK,
}


class _HalfMessage(NamedTuple):
    """Position of a half message.

    Attributes:
        broker: name of the broker that stored it; empty if it is known by its check only.
        address: its broker's at that time.
        queue_offset, commit_log_offset: the half message's.
        until_s: time of the loop after which it is forgotten.
    """

    broker: str
    address: str
    queue_offset: int
    commit_log_offset: int
    until_s: float


class Transactions:
    """Half messages that clients of this proxy may end."""

    def __init__(self) -> None:
        self._halves: OrderedDict[tuple[str, str], _HalfMessage] = OrderedDict()

    def put(
        self,
        topic: str,
        transaction_id: str,
        address: str,
        offset: int,
        commit_log_offset: int,
        *,
        broker: str = "",
    ) -> None:
        """Remember a half message for `TRANSACTION_S`."""
        now_s = asyncio.get_running_loop().time()
        key, until_s = (topic, transaction_id), now_s + TRANSACTION_S
        self._halves[key] = _HalfMessage(broker, address, offset, commit_log_offset, until_s)
        self._halves.move_to_end(key)
        while len(self._halves) > TRANSACTIONS_MAX or self._oldest().until_s < now_s:
            self._halves.popitem(last=False)

    def _oldest(self) -> _HalfMessage:
        return next(iter(self._halves.values()))

    def take(self, topic: str, transaction_id: str) -> _HalfMessage:
        """Return a half message and forget it.

        Raises:
            CallRefusedError: INTERNAL_SERVER_ERROR; it is unknown here.
        """
        half = self._halves.pop((topic, transaction_id), None)
        if half is None or half.until_s < asyncio.get_running_loop().time():
            raise CallRefusedError(
                Code.INTERNAL_SERVER_ERROR,
                f"cannot found transaction data: {transaction_id} of {topic}; the broker will "
                "check the transaction",
            )
        return half


class Sends:
    """Serves the calls of producers.

    Attributes:
        turns: numbers that grow with each send.
    """

    def __init__(self, cluster: Cluster, limits: CallLimits) -> None:
        self._cluster = cluster
        self._limits = limits
        self._transactions = Transactions()
        self.turns = Turns(cluster.now_ms() % 1_000)

    async def send(
        self, call: Call, _: CallContext, asked: v2.SendMessageRequest
    ) -> v2.SendMessageResponse:
        """Store the messages of one call; several of them as one batch."""
        now_ms = self._cluster.now_ms()
        topic = check_same_topic(asked).name
        for message in asked.messages:
            check_message(message, self._limits, now_ms)
        host = call.connection.remote_address[0]
        sent = [sent_message(message, host, now_ms) for message in asked.messages]
        topic_type = await self._cluster.metadata.topic_type(topic)
        for one in sent:
            check_sent_type(topic, topic_type, type_of(one.properties))
        entry = await self._store_any(topic, ordering_key(asked.messages), sent)
        return v2.SendMessageResponse(
            status=combined_status([entry.status.code], ""), entries=[entry]
        )

    async def _store_any(self, topic: str, key: str, sent: list[SentMessage]) -> v2.SendResultEntry:
        """Store messages in any queue, or in that of their key, which no other broker replaces."""
        queues: Sequence[MessageQueue] = await self._cluster.writable_queues(topic)
        if not key:
            queues = self._cluster.available(queues)
        while True:
            queue = sending_queue(queues, key, self.turns.take())
            others = [one for one in queues if one.broker_name != queue.broker_name]
            if key or not others:
                return await self._cluster.at_broker(
                    topic, queue.broker_name, partial(self._store, queue, sent), is_repeatable=False
                )
            try:
                address = await self._cluster.address(topic, queue.broker_name)
                return await self._store(queue, sent, address)
            except KourouError as error:
                self._cluster.on_failure(topic, queue.broker_name, error)
                # After any other error, the broker may have stored the message.
                if not is_not_served(error):
                    raise
            queues = others

    async def _store(
        self, queue: MessageQueue, sent: list[SentMessage], address: str
    ) -> v2.SendResultEntry:
        first = sent[0]
        outgoing = _outgoing(queue.topic, sent)
        command = send_command(
            outgoing, queue, queue.topic, first.born_at_ms, DEFAULT_QUEUES,
            reconsume_times=_reconsume_times(queue.topic, first),
        )  # fmt: skip
        answer = await self._cluster.pool.request(address, command, REQUEST_TIMEOUT_S)
        entry = send_result(answer, outgoing.msg_ids[0])
        header = answer.header(SendMessageResponseHeader)
        if first.sys_flag & sysflag.TRANSACTION_MASK and header.transaction_id:
            _, commit_log_offset = decode_offset_msg_id(header.msg_id)
            self._transactions.put(
                queue.topic, header.transaction_id, address, header.queue_offset,
                commit_log_offset, broker=queue.broker_name,
            )  # fmt: skip
        return entry

    async def end_transaction(
        self, _: Call, __: CallContext, asked: v2.EndTransactionRequest
    ) -> v2.EndTransactionResponse:
        """Commit or roll back a half message; answered before the broker has done so."""
        check_topic(asked.topic.name)
        if is_blank(asked.transaction_id):
            raise CallRefusedError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        half = self._transactions.take(asked.topic.name, asked.transaction_id)
        header = EndTransactionRequestHeader(
            asked.topic.name,
            half.queue_offset,
            half.commit_log_offset,
            _ENDS.get(asked.resolution, 0),
            topic=asked.topic.name,
            from_transaction_check=asked.source == TransactionSource.SOURCE_SERVER_CHECK,
            msg_id=asked.message_id,
            transaction_id=asked.transaction_id,
        )
        command = request(RequestCode.END_TRANSACTION, header, oneway=True)
        address = half.address
        if half.broker:  # its master may have been replaced
            address = await self._cluster.address(asked.topic.name, half.broker)
        await self._cluster.pool.oneway(address, command, REQUEST_TIMEOUT_S)
        return v2.EndTransactionResponse(status=ok())

    def on_check(self, client: ProxyClient, check: Request) -> None:
        """Ask a producer for the outcome of a transaction, as a broker requests."""
        header = check.command.header(CheckTransactionStateRequestHeader)
        message = decode_message(check.command.body, decompress=False)
        transaction_id = header.transaction_id or message.msg_id
        topic = message.properties.get(names.REAL_TOPIC, message.topic)
        message.topic = topic
        self._transactions.put(
            topic, transaction_id, format_address(check.connection.remote_address),
            header.tran_state_table_offset, header.commit_log_offset,
        )  # fmt: skip
        if client.telemetry is None or not client.telemetry.is_active:
            return
        orphaned = v2.RecoverOrphanedTransactionCommand(
            message=received_message(message, None, None, self._cluster.now_ms()),
            transaction_id=transaction_id,
        )
        command = v2.TelemetryCommand(recover_orphaned_transaction_command=orphaned)
        client.telemetry.send(command.SerializeToString())

    async def recall(
        self, _: Call, __: CallContext, asked: v2.RecallMessageRequest
    ) -> v2.RecallMessageResponse:
        """Cancel a scheduled message."""
        topic = asked.topic.name
        check_topic(topic)
        check_type(await self._cluster.metadata.topic_type(topic), "DELAY")
        handle = decode_recall_handle(asked.recall_handle)
        header = RecallMessageRequestHeader(topic, asked.recall_handle, topic)

        async def recall(address: str) -> str:
            command = request(RequestCode.RECALL_MESSAGE, header)
            answer = await self._cluster.pool.request(address, command, REQUEST_TIMEOUT_S)
            return recalled_id(answer, handle.broker_name)

        recalled = await self._cluster.at_broker(topic, handle.broker_name, recall)
        return v2.RecallMessageResponse(status=ok(), message_id=recalled)


def _reconsume_times(topic: str, first: SentMessage) -> int:
    """Return the earlier deliveries of a message: a sender states them for a retry topic only.

    The C++ client fills the field with the delivery time of scheduled messages.
    """
    return int(first.properties.get(names.RECONSUME_TIME, "0")) if is_retry_topic(topic) else 0


def _outgoing(topic: str, sent: list[SentMessage]) -> Outgoing:
    ids = tuple(one.properties[names.UNIQ_KEY] for one in sent)
    if len(sent) == 1:
        [one] = sent
        text = encode_properties(one.properties).decode()
        return Outgoing(topic, ids, one.body, text, sys_flag=one.sys_flag)
    body = encode_batch([BatchItem(0, one.body, encode_properties(one.properties)) for one in sent])
    return Outgoing(
        topic, ids, body, encode_properties({names.UNIQ_KEY: ids[0]}).decode(), is_batch=True
    )
