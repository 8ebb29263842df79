"""Calls about clients: Telemetry, Heartbeat, NotifyClientTermination; QueryRoute, QueryAssignment.

Source: ClientActivity.java, RouteActivity.java, apache/rocketmq 5.5.0, and recorded calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from kourou.errors import CallRefusedError, GrpcError, KourouError, NoRouteError
from kourou.http2.calls import Call
from kourou.http2.grpc_messages import GrpcStatus
from kourou.model.host import Host
from kourou.protocol.codes import RequestCode
from kourou.proxy.call_counts import CallCounts
from kourou.proxy.checks import CallLimits, accepts_all_types, check_group, check_topic
from kourou.proxy.client_commands import ClientCommands
from kourou.proxy.client_settings import (
    ProducerDefaults,
    answered_settings,
    remembered_settings,
)
from kourou.proxy.clients import ClientTable, ProxyClient, check_known_group, check_settings
from kourou.proxy.cluster import Cluster
from kourou.proxy.held_messages import HeldMessages
from kourou.proxy.member_messages import REGISTER, UNREGISTER, LocalMember
from kourou.proxy.member_sync import MemberSync
from kourou.proxy.metadata import CallContext, check_client_id, read_context
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import Code
from kourou.proxy.routes import assignments, message_queues, route_endpoints
from kourou.proxy.sends import Sends
from kourou.proxy.status import error_status, ok, telemetry_failure
from kourou.remoting.dispatch import Handler

log = logging.getLogger(__name__)

_TELEMETRY: Final = "Telemetry"
TASK_WORK: Final = 16
"""Frames whose handling takes as long as a call with a task, which sends requests to brokers."""
COMMANDS_MAX: Final = 64
"""Commands of one client that may wait to be served."""
UNKNOWN_TOPICS_MAX: Final = 1_000
"""Topics that do not exist and are named in the log, each once."""


class _TelemetryStream:
    """One Telemetry call, and its commands that wait to be served.

    Attributes:
        call: the call.
        context: of the client.
        waiting: the commands, oldest first.
        has_ended: the client sends nothing more.
        task: serves the commands; None: none waits.
    """

    __slots__ = ("_forget", "_serve_soon", "call", "context", "has_ended", "task", "waiting")

    def __init__(
        self,
        call: Call,
        context: CallContext,
        serve_soon: Callable[[_TelemetryStream], None],
        forget: Callable[[_TelemetryStream], None],
    ) -> None:
        self.call = call
        self.context = context
        self.waiting: list[bytes] = []
        self.has_ended = False
        self.task: asyncio.Task[None] | None = None
        self._serve_soon = serve_soon
        self._forget = forget

    def on_message(self, data: bytes) -> None:
        """See `Call`."""
        if len(self.waiting) >= COMMANDS_MAX:
            text = f"{COMMANDS_MAX} commands wait to be served: wait for their answers"
            raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, text)
        self.call.spend(TASK_WORK)
        self.waiting.append(data)
        self._serve_soon(self)

    def on_end(self) -> None:
        """See `Call`."""
        self.has_ended = True
        self._serve_soon(self)

    def on_cancel(self) -> None:
        """See `Call`."""
        if self.task is not None:
            self.task.cancel()
        self._forget(self)


class ClientCalls:
    """Serves the calls about clients.

    Attributes:
        members: tells other proxies of the members of groups; None: there are none.
    """

    def __init__(
        self,
        cluster: Cluster,
        clients: ClientTable,
        sends: Sends,
        held: HeldMessages,
        counts: CallCounts,
        limits: CallLimits,
        advertised: Host | None,
    ) -> None:
        self._cluster = cluster
        self._clients = clients
        self._sends = sends
        self._held = held
        self._counts = counts
        self._commands = ClientCommands(cluster)
        self._limits = limits
        self._advertised = advertised
        self._defaults = ProducerDefaults()
        self.members: MemberSync | None = None
        self._unknown: set[str] = set()
        self._streams: set[_TelemetryStream] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # Telemetry

    def telemetry(self, call: Call, _: bytes) -> None:
        """Serve the stream of a client: its settings, and commands to it."""
        call.send_headers()
        context = read_context(call.metadata, call.connection.remote_address[0])
        stream = _TelemetryStream(call, context, self._serve_soon, self._forget_stream)
        self._streams.add(stream)
        call.on_message = stream.on_message
        call.on_end = stream.on_end
        call.on_cancel = stream.on_cancel

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _serve_soon(self, stream: _TelemetryStream) -> None:
        if stream.task is None:
            stream.task = self._start(self._serve_telemetry(stream))

    async def _serve_telemetry(self, stream: _TelemetryStream) -> None:
        """Serve the commands of a client that wait. An idle stream has no task."""
        call, context = stream.call, stream.context
        try:
            while call.is_active and stream.waiting:
                data = stream.waiting.pop(0)
                await self._on_command(call, context, parse(v2.TelemetryCommand, data))
        except GrpcError as error:
            call.finish(error.status, error.text)
        except Exception as error:  # the edge of one client's stream
            if not isinstance(error, KourouError):
                log.exception("telemetry.failed client=%s", context.client_id)
            self._counts.add(_TELEMETRY, context.language, error_status(error).code)
            code, text = telemetry_failure(error)
            call.finish(GrpcStatus(code), text)
        finally:
            stream.task = None
        if stream.has_ended:
            call.finish()
        if not call.is_active:
            self._forget_stream(stream)

    def _forget_stream(self, stream: _TelemetryStream) -> None:
        self._streams.discard(stream)
        client = self._clients.find(stream.context.client_id)
        if client is not None and client.telemetry is stream.call:
            client.telemetry = None

    async def _on_command(
        self, call: Call, context: CallContext, command: v2.TelemetryCommand
    ) -> None:
        try:
            check_client_id(context)
        except CallRefusedError as error:
            refusal = v2.TelemetryCommand(status=error_status(error))
            call.send(refusal.SerializeToString())
            call.finish()
            return
        if command.WhichOneof("command") == "settings":
            answer = await self._settle(call, context, command.settings)
            self._counts.add(_TELEMETRY, context.language, Code.OK)
            call.send(v2.TelemetryCommand(status=ok(), settings=answer).SerializeToString())
        elif (client := self._clients.get(context.client_id)) is not None:
            self._commands.on_answer(client, command)

    async def _settle(self, call: Call, context: CallContext, settings: v2.Settings) -> v2.Settings:
        """Remember the settings of a client, register it, and return those that apply."""
        remembered = remembered_settings(settings, self._limits)
        check_settings(remembered)
        client = self._clients.get(context.client_id)
        if client is None:
            client = ProxyClient(
                context,
                call.connection.remote_address,
                remembered,
                self._cluster,
                self._handlers,
            )
            self._clients.put(client)
        client.settings = remembered
        client.telemetry = call
        try:
            await client.register()
            group = None
            if client.group:
                group = await self._cluster.metadata.group(client.group)
                if self._cluster.is_local:
                    check_known_group(group, client.group)
        except BaseException:
            # Another stream of the client may have replaced this one in the meantime.
            if not client.is_settled and client.telemetry in (None, call):
                self._clients.remove(client)
                self._start(self.forget(client))
            raise
        client.is_settled = True
        earlier, client.announced = client.announced, None  # these settings may differ
        self._announce(client)
        if earlier is not None and not earlier.is_same_connection(client.announced):
            self._publish_left(earlier)
        return answered_settings(remembered, group, self._limits, self._defaults)

    def _handlers(self, client: ProxyClient) -> Mapping[int, Handler]:
        """Return the handlers of brokers' requests to a client, by code."""
        check = partial(self._sends.on_check, client)
        return {RequestCode.CHECK_TRANSACTION_STATE: check, **self._commands.handlers(client)}

    # Heartbeat and termination

    async def heartbeat(
        self, _: Call, context: CallContext, asked: v2.HeartbeatRequest
    ) -> v2.HeartbeatResponse:
        """Keep a client registered."""
        client = self._known(context)
        if client.settings.WhichOneof("pub_sub") == "subscription":
            check_group(asked.group.name)
        await client.register()
        self._announce(client)
        return v2.HeartbeatResponse(status=ok())

    def _announce(self, client: ProxyClient) -> None:
        """Tell the other proxies of a member of a group."""
        if self.members is not None:
            if client.announced is None:
                client.announced = client.member()
            if client.announced is not None:
                self.members.publish(REGISTER, client.announced)

    def _publish_left(self, member: LocalMember) -> None:
        """Tell the other proxies that a member has left its group, or one of its connections."""
        if self.members is not None:
            self.members.publish(UNREGISTER, member)

    async def terminate(
        self, _: Call, context: CallContext, __: v2.NotifyClientTerminationRequest
    ) -> v2.NotifyClientTerminationResponse:
        """Forget a client that has stopped."""
        await self.forget(self._known(context))
        return v2.NotifyClientTerminationResponse(status=ok())

    def _known(self, context: CallContext) -> ProxyClient:
        client = self._clients.get(context.client_id)
        if client is None:
            raise CallRefusedError(
                Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        return client

    async def forget(self, client: ProxyClient) -> None:
        """Unregister a client, and release what it holds."""
        client.is_gone = True
        self._clients.remove(client)
        self._held.release(client)
        if client.announced is not None:
            self._publish_left(client.announced)
        await client.close()

    async def expire(self) -> None:
        """Forget the clients that made no call for too long; called every few seconds.

        The messages of those that have lost their stream are released earlier.
        """
        now_s = asyncio.get_running_loop().time()
        for client in self._clients.lost(now_s):
            self._held.release(client)
        for client in self._clients.expired(now_s):
            log.info("client.expired id=%s", client.id)
            await self.forget(client)

    def end_streams(self) -> None:
        """End the streams of all clients, which open new ones at another proxy, or later."""
        for stream in list(self._streams):
            stream.call.finish()
            self._forget_stream(stream)

    async def close(self) -> None:
        """Forget all clients."""
        self._commands.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*map(self.forget, self._clients))
        if self.members is not None:
            await self.members.flush()

    # Routes

    async def query_route(
        self, call: Call, _: CallContext, asked: v2.QueryRouteRequest
    ) -> v2.QueryRouteResponse:
        """Return the queues of a topic, at the address by which the client reaches the proxy."""
        check_topic(asked.topic.name)
        try:
            route = await self._cluster.route(asked.topic.name)
        except NoRouteError as error:
            self._log_unknown(asked.topic.name, error)
            raise
        endpoints = self._endpoints(call, asked.endpoints)
        topic_type = await self._cluster.metadata.topic_type(asked.topic.name)
        queues = message_queues(route, asked.topic, endpoints, topic_type)
        return v2.QueryRouteResponse(status=ok(), message_queues=queues)

    async def query_assignment(
        self, call: Call, _: CallContext, asked: v2.QueryAssignmentRequest
    ) -> v2.QueryAssignmentResponse:
        """Return what a member of a group receives from."""
        check_topic(asked.topic.name)
        check_group(asked.group.name)
        route = await self._cluster.route(asked.topic.name)
        endpoints = self._endpoints(call, asked.endpoints)
        group = await self._cluster.metadata.group(asked.group.name)
        found = assignments(
            route,
            asked.topic,
            endpoints,
            by_queue=group is not None and group.consume_message_orderly,
        )
        return v2.QueryAssignmentResponse(status=ok(), assignments=found)

    def _log_unknown(self, topic: str, error: NoRouteError) -> None:
        """Name a topic that does not exist in the log, once; dead letters create theirs."""
        is_new = topic not in self._unknown and not accepts_all_types(topic)
        if is_new and len(self._unknown) < UNKNOWN_TOPICS_MAX:
            self._unknown.add(topic)
            log.warning("topic.not_found topic=%s reason=%s", topic, error)

    def _endpoints(self, call: Call, requested: v2.Endpoints) -> v2.Endpoints:
        return route_endpoints(requested, self._advertised, call.connection.local_address)
