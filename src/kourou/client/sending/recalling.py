"""Recall of scheduled messages."""

from __future__ import annotations

from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline, check_timeout
from kourou.client.sending.send_traces import SendTraces
from kourou.errors import InvalidTopicError, NoPermissionError, RemoteError
from kourou.model.queue import MessageQueue
from kourou.model.recall_handle import decode_recall_handle
from kourou.model.topic import DLQ_PREFIX, check_topic, is_retry_topic
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import request
from kourou.protocol.headers_send import RecallMessageRequestHeader, RecallMessageResponseHeader


class Recalling:
    """The `recall` method of `Producer`, as a mixin."""

    group: str
    _instance: ClientInstance
    _config: ProducerConfig
    _traces: list[SendTraces]

    async def recall(self, topic: str, handle: str, *, timeout_ms: int | None = None) -> str:
        """Cancel a scheduled message that is not delivered yet.

        The broker must allow it (`recallMessageEnable`; by default enabled in Kourou, disabled in
        Java). After this method has returned, Kourou's brokers do not deliver the message. Java's
        brokers also answer with success if the message was already delivered or recalled.

        Args:
            topic: the topic of the message.
            handle: `SendReceipt.recall_handle`.
            timeout_ms: for all tries together; None: `send_timeout_ms`.

        Returns:
            The unique id of the message.

        Raises:
            UsageError: the handle or the topic is invalid, or the producer is closed.
            NoPermissionError: the broker does not allow it.
            RemoteError: as `send`; with code 604 if the handle is of another topic, or the delivery
                time of the message has passed.
            TransportError: as `send`; the message may have been recalled.
            FlushDiskTimeoutError: the broker has stored the recall, but its sync did not end in
                time (a TransportError if the next try got no answer). The message is delivered only
                if the broker's machine fails before the sync. The call can be repeated safely.
        """
        self._instance.check_open()
        check_topic(topic)
        if is_retry_topic(topic) or topic.startswith(DLQ_PREFIX):
            raise InvalidTopicError(f"topic {topic} has no scheduled messages to recall")
        decoded = decode_recall_handle(handle)
        broker = decoded.broker_name
        check_timeout(timeout_ms)
        limit_ms = self._config.send_timeout_ms if timeout_ms is None else timeout_ms
        header = RecallMessageRequestHeader(topic, handle, self.group, broker_name=broker)

        async def call(address: str, deadline: Deadline) -> str:
            command = request(RequestCode.RECALL_MESSAGE, header)
            pool = self._instance.pool
            answer = await pool.request(address, command, deadline.remaining_s())
            for traces in self._traces:
                traces.recalled(self.group, topic, decoded.unique_id, answer)
            if answer.code == ResponseCode.NO_PERMISSION:
                raise NoPermissionError(
                    answer.code,
                    f"{answer.remark}: allow it by recallMessageEnable of the broker "
                    f"(kourou broker set {broker} recallMessageEnable=true)",
                )
            if answer.code != ResponseCode.SUCCESS:
                raise RemoteError.from_response(answer.code, answer.remark)
            return answer.header(RecallMessageResponseHeader).msg_id

        return await self._instance.call_broker(MessageQueue(topic, broker, 0), limit_ms, call)
