"""Replays the recorded calls of a proxy in one of its modes, in the order of their session.

Handles and log positions differ in every session: those of the recording are replaced by those that
the replay received for the same messages.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from kourou.http2.grpc_messages import GrpcStatus
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import PERM_READ, TopicConfig
from kourou.proxy.pb import v2
from kourou.testing.loop import run_virtual
from tests.golden_calls import Call, calls
from tests.proxy.grpc_client import METHODS, ClientCall, GrpcClient
from tests.proxy.proxy_rig import PROXY, Mode, Rig, proxy_rig

_STARTED_MS: Final = {Mode.LOCAL: 1_795_228_880_000, Mode.CLUSTER: 1_795_228_200_000}
"""Some seconds before the first recorded call."""
_SESSION: Final = "_session"
_FED: Final = ("ReceiveMessage_batch_64", "ReceiveMessage_fifo")
"""Receives whose messages a client had sent that was not recorded."""

_TOPICS: Final = {
    "GrpcNormal": "NORMAL",
    "GrpcFifo": "FIFO",
    "GrpcDelay": "DELAY",
    "GrpcTran": "TRANSACTION",
    "GrpcPriority": "PRIORITY",
    "GrpcLite": "LITE",
}
_CONSUMED: Final = {"GrpcConsume": "NORMAL", "GrpcConsumeFifo": "FIFO", "GrpcEmpty": "NORMAL"}

_WAITS: Final = {"ReceiveMessage_redelivered_after_expiry": 10.0}
"""Seconds without calls before a call, for messages to become visible again."""
_SENDS_FIRST: Final = (
    "SendMessage_before_settings",
    "Heartbeat_consumer_before_settings",
    "NotifyClientTermination_unknown_client",
    "Telemetry_producer_session",
    "Heartbeat_producer",
)
_CONSUMES: Final = (
    "Telemetry_feeder_session",
    "ReceiveMessage_no_settings",
    "Telemetry_simple_consumer_session",
    "Heartbeat_push_consumer",
    "Heartbeat_simple_consumer",
    "Heartbeat_illegal_group",
    "Heartbeat_no_group",
    "Heartbeat_no_type",
    "ReceiveMessage_ok",
    "ReceiveMessage_tag_expression",
    "ReceiveMessage_two_tags",
    "ReceiveMessage_sql_expression",
    "ReceiveMessage_bad_sql",
    "ReceiveMessage_auto_renew",
    "ReceiveMessage_empty_poll",
    "ReceiveMessage_empty_poll_short_deadline",
    "ReceiveMessage_empty_poll_without_long_polling_timeout",
    "ReceiveMessage_no_deadline",
    "ReceiveMessage_invisible_too_short",
    "ReceiveMessage_invisible_too_long",
    "ReceiveMessage_invisible_missing",
    "ReceiveMessage_unknown_topic",
    "ReceiveMessage_illegal_topic",
    "ReceiveMessage_illegal_group",
    "ReceiveMessage_unknown_group",
    "ReceiveMessage_batch_0",
    "ReceiveMessage_batch_64",
    "ReceiveMessage_unknown_broker_name",
    "AckMessage_ok",
    "AckMessage_again",
    "AckMessage_expired_handle",
    "AckMessage_mixed",
    "AckMessage_bad_handle",
    "AckMessage_bad_handle_eight_words",
    "AckMessage_empty_handle",
    "AckMessage_no_entries",
    "AckMessage_illegal_group",
    "AckMessage_unknown_topic",
    "ChangeInvisibleDuration_ok",
    "ChangeInvisibleDuration_old_handle_again",
    "ChangeInvisibleDuration_expired_handle",
    "ChangeInvisibleDuration_bad_handle",
    "ChangeInvisibleDuration_too_long",
    "ChangeInvisibleDuration_negative",
    "ChangeInvisibleDuration_zero",
    "ForwardMessageToDeadLetterQueue_ok",
    "ForwardMessageToDeadLetterQueue_again",
    "ForwardMessageToDeadLetterQueue_expired_handle",
    "ForwardMessageToDeadLetterQueue_bad_handle",
    "ForwardMessageToDeadLetterQueue_unknown_topic",
    "ReceiveMessage_redelivered_after_expiry_first",
    "ReceiveMessage_dead_letter_topic",
    "Telemetry_fifo_consumer_session",
    "ReceiveMessage_fifo",
    "ReceiveMessage_fifo_same_attempt",
    "ReceiveMessage_fifo_blocked",
    "AckMessage_fifo",
    "AckMessage_fifo_2",
    "ReceiveMessage_redelivered_after_expiry",
)
_TRANSACTIONS: Final = (
    "Telemetry_transaction_session",
    "Heartbeat_transaction_producer",
    "SendMessage_transaction_commit",
    "EndTransaction_commit",
    "SendMessage_transaction_rollback",
    "EndTransaction_rollback",
    "SendMessage_transaction_unspecified",
    "EndTransaction_unspecified",
    "SendMessage_transaction_orphan",
    "EndTransaction_empty_transaction_id",
    "EndTransaction_unknown_transaction_id",
    "EndTransaction_after_server_check",
    "SendMessage_transaction_no_recovery_too_long",
    "SendMessage_transaction_to_normal_topic",
)
_ENDS: Final = ("NotifyClientTermination_consumer", "NotifyClientTermination_producer")
_RECALLS: Final = ("ok", "again", "other_topic", "unknown_topic", "bad_handle", "empty_handle")


@dataclass
class Outcome:
    """The answers to one replayed call."""

    answers: list[Any]
    status: GrpcStatus | None
    text: str


@cache
def replayed(mode: Mode) -> dict[str, Outcome]:
    """Return the outcomes of all recorded calls, by their names without the mode."""

    async def main() -> dict[str, Outcome]:
        limit = 8 * 1024 * 1024
        async with proxy_rig(
            epoch_ms=_STARTED_MS[mode], mode=mode, max_message_size_bytes=limit
        ) as rig:
            return await _Replay(rig, mode).run()

    return run_virtual(main(), limit_s=600.0)


def recorded(mode: Mode, name: str) -> Call:
    """Return a recorded call."""
    return calls()[f"{mode.value}/{name}"]


def names(mode: Mode) -> list[str]:
    """Return the names of all calls, in the order of the replay."""
    prefix = f"{mode.value}/"
    every = [name.removeprefix(prefix) for name in calls() if name.startswith(prefix)]
    rpcs = ("QueryRoute", "QueryAssignment")
    routes = [name for name in every if name.startswith(rpcs)]
    unknown = [name for name in every if name.endswith("_any")]
    streams = [
        name for name in every if name.startswith("Telemetry") and not name.endswith(_SESSION)
    ]
    sends = [name for name in every if name.startswith("SendMessage")]
    lite = [name for name in every if "lite" in name.lower() and not name.startswith("SendMessage")]
    lite.sort(key=lambda name: not name.endswith(_SESSION))
    order = [*routes, *unknown, *_SENDS_FIRST, *streams]
    others = set(sends) - set(_SENDS_FIRST) - set(_TRANSACTIONS)
    order += sorted(others, key=lambda name: _message_id(mode, name))
    order += [f"RecallMessage_{case}" for case in _RECALLS]
    order += [*_CONSUMES, *lite, *_TRANSACTIONS, *_ENDS]
    assert sorted(order) == sorted(every), set(order) ^ set(every)
    return order


def _message_id(mode: Mode, name: str) -> tuple[str, str]:
    """Return the id of the first message, by which recorded sends are in order, and the name."""
    asked = v2.SendMessageRequest.FromString(recorded(mode, name).request)
    return asked.messages[0].system_properties.message_id if asked.messages else "", name


@dataclass
class _Replay:
    """One replay.

    Attributes:
        mode: of the proxy.
        handles: those of the replay by those of the recording.
        positions: of messages in the log, as texts, likewise.
    """

    rig: Rig
    mode: Mode
    handles: dict[str, str] = field(default_factory=dict)
    positions: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, ClientCall] = field(default_factory=dict)

    async def run(self) -> dict[str, Outcome]:
        await self._create()
        client = await GrpcClient.connect(self.rig.network, PROXY)
        outcomes = {}
        for name in names(self.mode):
            if name == "ReceiveMessage_no_settings":
                await self._feed(client)
            await asyncio.sleep(_WAITS.get(name, 0))
            if name.startswith("Telemetry"):
                outcomes[name] = await self._stream(client, name)
            else:
                outcomes[name] = await self._call(client, name)
        await self._end_sessions(outcomes)
        client.close()
        return outcomes

    async def _create(self) -> None:
        topics = [
            TopicConfig(name, queues, queues, attributes={"message.type": kind})
            for queues, kinds in ((4, _TOPICS), (1, _CONSUMED))
            for name, kind in kinds.items()
        ]
        topics.append(TopicConfig("GrpcPlain", 2, 2))
        topics.append(TopicConfig("GrpcReadOnly", 2, 2, perm=PERM_READ))
        groups = (
            SubscriptionGroup("grpc_group"),
            SubscriptionGroup("grpc_fifo_group", consume_message_orderly=True),
            SubscriptionGroup("grpc_lite_group"),
        )
        await self.rig.create(*topics, groups=groups)

    async def _feed(self, client: GrpcClient) -> None:
        """Send the messages that the recorded receives return."""
        for name in _FED:
            for data in recorded(self.mode, name).responses[1:-1]:
                message = v2.ReceiveMessageResponse.FromString(data).message
                properties = message.system_properties
                properties.ClearField("delivery_attempt")
                group = message.user_properties.get("__SHARDINGKEY")
                if group is not None:
                    properties.message_group = group
                    del message.user_properties["__SHARDINGKEY"]
                asked = v2.SendMessageRequest(messages=[message])
                call = client.open("SendMessage", 10.0, {"x-mq-client-id": "feeder"})
                call.send(asked, ends=True)
                [answer] = await call.rest()
                assert answer.status.code == v2.Code.OK, answer

    async def _stream(self, client: GrpcClient, name: str) -> Outcome:
        """Send what the recorded client sent; the stream of a session remains open."""
        recording = recorded(self.mode, name)
        call = client.open("Telemetry", None, recording.metadata)
        answers = []
        for part in recording.parts:
            if part.sender == "client":
                call.send(part.data)
            elif (answer := await call.next()) is not None:
                answers.append(answer)
                if answer.HasField("settings") and name.endswith("transaction_session"):
                    break  # the check of a transaction follows later
        outcome = Outcome(answers, None, "")
        if name.endswith(_SESSION):
            self.sessions[name] = call
        else:
            await asyncio.sleep(1)  # for answers that were not recorded
            if not call.is_over:
                call.end()
            answers += await call.rest()
            outcome.status, outcome.text = call.status, call.text
        return outcome

    async def _call(self, client: GrpcClient, name: str) -> Outcome:
        recording = recorded(self.mode, name)
        asked = METHODS[recording.rpc].request.FromString(recording.request)
        if name == "EndTransaction_after_server_check":
            self.check = await self.sessions["Telemetry_transaction_session"].next()
        self._replace_handles(asked)
        call = client.open(recording.rpc, recording.timeout_s, recording.metadata)
        call.send(asked, ends=True)
        answers = await call.rest()
        response = METHODS[recording.rpc].response
        for before, now in zip(
            map(response.FromString, recording.responses), answers, strict=False
        ):
            self._learn(before, now)
        return Outcome(answers, call.status, call.text)

    async def _end_sessions(self, outcomes: dict[str, Outcome]) -> None:
        outcomes["Telemetry_transaction_session"].answers.append(self.check)
        for name, call in self.sessions.items():
            if not call.is_over:
                call.end()
            outcomes[name].answers += await call.rest()
            outcomes[name].status, outcomes[name].text = call.status, call.text

    def _learn(self, before: Any, now: Any) -> None:
        if isinstance(before, v2.ReceiveMessageResponse):
            self._map(
                before.message.system_properties.receipt_handle,
                now.message.system_properties.receipt_handle,
            )
        elif isinstance(before, v2.ChangeInvisibleDurationResponse):
            self._map(before.receipt_handle, now.receipt_handle)
        elif isinstance(before, v2.SendMessageResponse) and before.entries and now.entries:
            self._map(before.entries[0].recall_handle, now.entries[0].recall_handle)

    def _map(self, before: str, now: str) -> None:
        if before and now:
            self.handles[before] = now
            self.positions[before.rpartition(" ")[2]] = now.rpartition(" ")[2]

    def _replace_handles(self, asked: Any) -> None:
        for holder in (asked, *getattr(asked, "entries", ())):
            for name in ("receipt_handle", "recall_handle"):
                if getattr(holder, name, ""):
                    setattr(holder, name, self._handle(getattr(holder, name)))

    def _handle(self, text: str) -> str:
        start, _, position = text.rpartition(" ")
        invented = f"{start} {self.positions.get(position, position)}".lstrip()
        return self.handles.get(text, invented)
