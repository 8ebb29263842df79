"""Administration of consumers: requests of brokers, relayed to clients by Telemetry.

    request of the broker        command to the client        answer to the broker
    running info                 with stacks: print stacks    settings, and the stacks
    consume one message          verify message               result of the listener
    consumer status              none                         no offsets: brokers have them
    reset of offsets             none                         none: the broker has done it

A command has a number that its answer repeats. A client that does not answer within `COMMAND_S` is
SYSTEM_BUSY.

Source: GrpcClientChannel.java, ProxyChannel.java, ProxyRelayService.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from kourou.errors import RemoteError
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.offsets import ConsumerStatus, encode_consumer_status
from kourou.protocol.record.decode import decode_message
from kourou.protocol.running_info import (
    ConsumeMessageDirectlyResult,
    ConsumeMessageDirectlyResultRequestHeader,
    ConsumeResult,
    ConsumerRunningInfo,
    GetConsumerRunningInfoRequestHeader,
    encode_consume_directly_result,
    encode_consumer_running_info,
)
from kourou.proxy.clients import ProxyClient
from kourou.proxy.cluster import Cluster
from kourou.proxy.convert import received_message
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code
from kourou.proxy.status import code_name
from kourou.remoting.connection import Request
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.dispatch import Handler

COMMAND_S: Final = 5.0
"""Time in seconds for the answer of a client."""
_RESULTS: Final[dict[int, ConsumeResult]] = {
    Code.OK: ConsumeResult.SUCCESS,
    Code.FAILED_TO_CONSUME_MESSAGE: ConsumeResult.LATER,
    Code.MESSAGE_CORRUPTED: ConsumeResult.RETURN_NULL,
}


class ClientCommands:
    """Commands to clients that wait for an answer.

    Args:
        cluster: the brokers, which have the settings of groups.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._waiting: dict[str, tuple[ProxyClient, asyncio.Future[v2.TelemetryCommand]]] = {}
        self._later = DeferredReplies()

    def handlers(self, client: ProxyClient) -> Mapping[int, Handler]:
        """Return the handlers of brokers' requests to a client, by code."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._relayed(client, self._running_info),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._relayed(client, self._consume),
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _no_offsets,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: lambda _: None,
        }

    def on_answer(self, client: ProxyClient, answer: v2.TelemetryCommand) -> None:
        """Pass the answer of a client to the command with its number."""
        kind = answer.WhichOneof("command")
        if kind == "thread_stack_trace":
            nonce = answer.thread_stack_trace.nonce
        elif kind == "verify_message_result":
            nonce = answer.verify_message_result.nonce
        else:
            return
        asked, future = self._waiting.get(nonce, (None, None))
        if asked is client and future is not None and not future.done():
            future.set_result(answer)

    def close(self) -> None:
        """End the commands in progress."""
        self._later.abandon()

    def _relayed(
        self,
        client: ProxyClient,
        serve: Callable[[ProxyClient, Request], Awaitable[bytes]],
    ) -> Handler:
        async def answer(request: Request) -> RemotingCommand:
            body = await serve(client, request)
            return response(request.command, ResponseCode.SUCCESS, body=body)

        return lambda request: self._later.answer(request, partial(answer, request))

    async def _running_info(self, client: ProxyClient, request: Request) -> bytes:
        header = request.command.header(GetConsumerRunningInfoRequestHeader)
        _check_group(client, header.consumer_group)
        stacks = None
        if header.jstack_enable:
            nonce = str(next(self._numbers))
            command = v2.TelemetryCommand(
                print_thread_stack_trace_command=v2.PrintThreadStackTraceCommand(nonce=nonce)
            )
            answer = await self._ask(client, nonce, command)
            if answer.HasField("status") and answer.status.code != Code.OK:
                raise RemoteError.from_response(
                    ResponseCode.SYSTEM_ERROR,
                    f"client {client.id} returned no stacks: {code_name(answer.status.code)} "
                    f"{answer.status.message}",
                )
            stacks = answer.thread_stack_trace.thread_stack_trace
        properties = {
            "PROP_CONSUMEORDERLY": str(await self._is_ordered(client)).lower(),
            "PROP_CONSUME_TYPE": client.consume_type.value,
            "PROP_CLIENT_VERSION": client.version,
            "PROP_CONSUMER_START_TIMESTAMP": str(client.began_at_ms),
        }
        subscriptions = sorted(client.subscriptions(), key=lambda one: (one.topic, one.sub_string))
        return encode_consumer_running_info(
            ConsumerRunningInfo(properties, subscriptions, jstack=stacks)
        )

    async def _consume(self, client: ProxyClient, request: Request) -> bytes:
        header = request.command.header(ConsumeMessageDirectlyResultRequestHeader)
        _check_group(client, header.consumer_group)
        message = decode_message(request.command.body, decompress=False)
        nonce = str(next(self._numbers))
        command = v2.TelemetryCommand(
            verify_message_command=v2.VerifyMessageCommand(
                nonce=nonce,
                message=received_message(message, None, client.language, self._cluster.now_ms()),
            )
        )
        began_s = asyncio.get_running_loop().time()
        status = (await self._ask(client, nonce, command)).status
        result = _RESULTS.get(status.code)
        if result is None:
            raise RemoteError.from_response(
                ResponseCode.SYSTEM_ERROR,
                f"client {client.id} did not consume the message: {code_name(status.code)} "
                f"{status.message}",
            )
        spent_ms = int((asyncio.get_running_loop().time() - began_s) * 1000)
        order = await self._is_ordered(client)
        return encode_consume_directly_result(
            ConsumeMessageDirectlyResult(
                result, order, remark=status.message or None, spent_time_ms=spent_ms
            )
        )

    async def _is_ordered(self, client: ProxyClient) -> bool:
        """Return whether the group consumes in order; the client's own settings do not say it."""
        group = await self._cluster.metadata.group(client.group)
        return group is not None and group.consume_message_orderly

    async def _ask(
        self, client: ProxyClient, nonce: str, command: v2.TelemetryCommand
    ) -> v2.TelemetryCommand:
        """Send a command, and return its answer.

        Raises:
            RemoteError: SYSTEM_BUSY; the client has no stream, or does not answer.
        """
        if client.telemetry is None or not client.telemetry.is_active:
            raise _busy(f"client {client.id} has no Telemetry stream now")
        future: asyncio.Future[v2.TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._waiting[nonce] = client, future
        try:
            client.telemetry.send(command.SerializeToString())
            async with asyncio.timeout(COMMAND_S):
                return await future
        except TimeoutError:
            text = f"client {client.id} did not answer a command within {COMMAND_S:g} s"
            raise _busy(text) from None
        finally:
            del self._waiting[nonce]


def _no_offsets(request: Request) -> RemotingCommand:
    """Return no offsets: the client does not know them, and the broker does."""
    return response(
        request.command, ResponseCode.SUCCESS, body=encode_consumer_status(ConsumerStatus())
    )


def _check_group(client: ProxyClient, group: str) -> None:
    if group != client.group:
        raise RemoteError.from_response(
            ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer"
        )


def _busy(text: str) -> RemoteError:
    return RemoteError.from_response(ResponseCode.SYSTEM_BUSY, text)
