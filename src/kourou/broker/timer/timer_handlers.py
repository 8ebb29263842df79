"""Requests for scheduled messages: RECALL_MESSAGE (370), and two that replicas send (60, 61).

A recall is refused, in Java's order, with Java's response codes:

    16   `recallMessageEnable` is off
    14   the broker is not writable, and recalls are not allowed then
    16   only the broker may write to the topic
    17   the topic does not exist
    604  the handle is invalid or for another topic or broker, or its time is over or too far ahead
    1    the recall could not be stored
    10   it is stored, but the sync did not end in time: a crash may undo the recall

After an answer of 0 or 10 the message is not delivered any more, because the recall takes effect in
memory before it is stored. As in Java the answer is the same if the message was delivered a moment
before.

Source: RecallMessageProcessor.java, AdminBrokerProcessor.getTimerCheckPoint and getTimerMetrics,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.timer.scheduling import TimerPlacement
from kourou.broker.timer.timers import Timers
from kourou.broker.writing.put import CODES, PutResult
from kourou.decimals import decimal_or
from kourou.errors import MessageIllegalError, RemoteSystemError, UsageError
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.recall_handle import RecallHandle, decode_recall_handle
from kourou.protocol.brokers import TimerCheckPoint, encode_timer_check_point
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.json_records import encode_record
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.sending import RecallMessageRequestHeader, RecallMessageResponseHeader
from kourou.protocol.timer_progress import PROGRESS_FIELD, encode_progress
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler

_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"
_UNAVAILABLE: Final = "recall failed, broker service not available"


class TimerHandlers:
    """Serves RECALL_MESSAGE (370), GET_TIMER_CHECK_POINT (60) and GET_TIMER_METRICS (61)."""

    def __init__(
        self,
        context: BrokerContext,
        timers: Timers,
        placement: TimerPlacement,
        check_point: Callable[[], TimerCheckPoint],
    ) -> None:
        """Recall messages that wait in `timers`.

        Args:
            context: the broker's state and services.
            timers: stop the delivery of recalled messages.
            placement: places the records of recalls.
            check_point: returns the progress.
        """
        self._config = context.live_config
        self._topics = context.topics
        self._timers = timers
        self._check_point = check_point
        self._placement = placement
        self._commit = context.commit
        self._stats = context.stats
        self._clock = context.clock
        self._store_host = context.store_host

    def table(self) -> dict[int, Handler]:
        """Return request code -> handler."""
        return {
            RequestCode.RECALL_MESSAGE: self.on_recall_message,
            RequestCode.GET_TIMER_CHECK_POINT: self.on_get_timer_check_point,
            RequestCode.GET_TIMER_METRICS: self.on_get_timer_metrics,
        }

    def on_get_timer_check_point(self, request: Request) -> RemotingCommand:
        """Serve 60."""
        answer = response(request.command, body=encode_timer_check_point(self._check_point()))
        progress = self._timers.storage.replica_progress()
        if progress is not None:
            answer.ext_fields[PROGRESS_FIELD] = encode_progress(progress)
        return answer

    def on_get_timer_metrics(self, request: Request) -> RemotingCommand:
        """Serve 61."""
        return response(request.command, body=encode_record(self._timers.counts.metrics()))

    def on_recall_message(self, request: Request) -> RemotingCommand | None:
        """Serve 370; answer when the recall is as durable as a send."""
        header = request.command.header(RecallMessageRequestHeader)
        now_ms = self._clock.now_ms()
        refusal = self._refusal(header.topic)
        handle: RecallHandle | None = None
        if refusal is None:
            try:
                handle = decode_recall_handle(header.recall_handle)
                refusal = self._wrong_handle(header.topic, handle, now_ms)
            except UsageError as error:
                refusal = ResponseCode.ILLEGAL_OPERATION, str(error)
        if refusal is not None or handle is None:
            code, remark = refusal or (ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
            return self._answer(request, code, remark)
        self._store(request, handle, header.producer_group or "", now_ms)
        return None

    def _refusal(self, topic: str) -> tuple[int, str] | None:
        config = self._config.current
        if not config.timer.recall_message_enable:
            return ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden"
        is_allowed = config.timer.allow_recall_when_broker_not_writeable
        if not config.is_writable and not is_allowed:
            return ResponseCode.SERVICE_NOT_AVAILABLE, _UNAVAILABLE
        if not self._topics.accepts_sends(topic):
            return ResponseCode.NO_PERMISSION, (
                f"recall failed, only the broker may store messages in topic {topic}"
            )
        if self._topics.get(topic) is None:
            return ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist"
        return None

    def _wrong_handle(
        self, topic: str, handle: RecallHandle, now_ms: int
    ) -> tuple[int, str] | None:
        config = self._config.current
        if handle.topic != topic:
            return ResponseCode.ILLEGAL_OPERATION, (
                f"recall failed, topic not match: the handle is of topic {handle.topic}, "
                f"not {topic}"
            )
        if handle.broker_name != config.broker_name:
            return ResponseCode.ILLEGAL_OPERATION, (
                f"{_UNAVAILABLE}: the handle is of broker {handle.broker_name}, "
                f"this is {config.broker_name}"
            )
        time = handle.time
        at_ms = decimal_or(time, -1)
        limit_ms = config.timer.timer_max_delay_sec * 1000
        if not 0 < at_ms - now_ms < limit_ms:
            return ResponseCode.ILLEGAL_OPERATION, (
                f"recall failed, timestamp invalid: the message is due at {time}, now it is "
                f"{now_ms}; it must be later, by less than {limit_ms} ms (timerMaxDelaySec)"
            )
        return None

    def _store(self, request: Request, handle: RecallHandle, group: str, now_ms: int) -> None:
        key = handle.topic, handle.unique_id
        try:
            draft = self._draft(request, handle, group, now_ms)
        except (MessageIllegalError, RemoteSystemError) as error:
            request.reply(self._answer(request, error.code, f"recall failed, {error.remark}"))
            return

        def done(result: PutResult) -> None:
            if not result.appended:
                self._timers.undo_recall(key)
                self._stats.on_put_failed()
                remark = f"recall failed, execute error: {result.reason}"
                request.reply(self._answer(request, ResponseCode.SYSTEM_ERROR, remark))
                return
            header = RecallMessageResponseHeader(handle.unique_id, self._config.current.region_id)
            code, reason = CODES[result.status], result.reason or None
            request.reply(response(request.command, code, reason, header))

        self._timers.recall(key, int(handle.time))
        owner = request.connection
        self._commit.put([draft], now_ms, done, owner=owner, wait_for_copies=True)

    def _draft(
        self, request: Request, handle: RecallHandle, group: str, now_ms: int
    ) -> RecordDraft:
        """Return the record draft of the recall."""
        key = handle.unique_id
        if self._config.current.timer.append_topic_for_timer_delete_key:
            key = f"{handle.topic}+{key}"
        properties = {
            names.TAGS: _TAG,
            names.TIMER_DEL_UNIQKEY: key,
            names.UNIQ_KEY: handle.unique_id,
            names.TIMER_DELIVER_MS: handle.time,
            names.BORN_TIMESTAMP: str(now_ms),
            names.PGROUP: group,
        }
        placed = self._placement.place(handle.topic, 0, properties, now_ms)
        return RecordDraft(
            topic=placed.topic.encode(),
            queue_id=placed.queue_id,
            flag=0,
            sys_flag=0,
            born_at_ms=now_ms,
            born_host=request.remote_address,
            store_host=self._store_host or request.connection.local_address,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=_BODY,
            properties=encode_properties(properties),
        )

    def _answer(self, request: Request, code: int, remark: str | None) -> RemotingCommand:
        answer = response(request.command, code, remark)
        answer.ext_fields[names.MSG_REGION] = self._config.current.region_id
        return answer
