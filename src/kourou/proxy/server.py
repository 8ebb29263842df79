"""The gRPC proxy: serves the calls of 5.x clients with the brokers of a cluster.

Source: GrpcMessagingApplication.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from kourou.broker.periodic_tasks import PeriodicTasks
from kourou.errors import CallRefusedError, KourouError
from kourou.http2.calls import Call, Kind, Method
from kourou.http2.grpc_messages import GrpcStatus
from kourou.http2.server import GrpcServer
from kourou.metrics import Family
from kourou.model.host import Host
from kourou.protocol.codes import LanguageCode
from kourou.proxy.call_counts import CallCounts
from kourou.proxy.checks import CallLimits
from kourou.proxy.client_calls import TASK_WORK, ClientCalls
from kourou.proxy.clients import ClientTable
from kourou.proxy.cluster import Cluster
from kourou.proxy.deliveries import Deliveries
from kourou.proxy.health import HEALTH, HealthService
from kourou.proxy.held_messages import HeldMessages
from kourou.proxy.member_sync import MemberSync
from kourou.proxy.metadata import CallContext, check_client_id, read_context
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import Code
from kourou.proxy.plain_acks import PlainAcks
from kourou.proxy.plain_receives import PlainReceives
from kourou.proxy.plain_sends import PlainSends
from kourou.proxy.receipt_calls import ReceiptCalls
from kourou.proxy.received_writes import WriteLimits
from kourou.proxy.receives import Receives
from kourou.proxy.reflection import REFLECTION, ReflectionService
from kourou.proxy.sends import Sends
from kourou.proxy.status import broker_error_status, error_status
from kourou.remoting.admission import Admission
from kourou.remoting.network import Address, Network

log = logging.getLogger(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
STOP_S: Final = 2.0
"""Seconds in which calls may end when the proxy stops."""
_RENEW_MS: Final = 5_000
_EXPIRE_MS: Final = 5_000

_UNIMPLEMENTED: Final = ("GetOffset", "PullMessage", "QueryOffset", "UpdateOffset")
"""Methods of the service that the proxy refuses by name."""

Serve = Callable[[Call, CallContext, Any], Coroutine[Any, Any, Any]]


class Proxy:
    """One gRPC proxy. Created inside a running loop; started and stopped once.

    Attributes:
        address: on which it listens, once it is started.
        cluster: the brokers.
        plain_sends: the fast path of sends.
        plain_acks: the fast path of acks.
        plain_receives: the fast path of receives.
    """

    def __init__(
        self,
        network: Network,
        cluster: Cluster,
        *,
        limits: CallLimits | None = None,
        write_limits: WriteLimits | None = None,
        advertised: Host | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Create a proxy that does not listen yet.

        Args:
            network: where it listens.
            cluster: its brokers.
            limits: of the values in calls; None for RocketMQ's.
            write_limits: of messages that wait for slow clients; None: the defaults.
            advertised: the address in routes; None: the one that each client uses.
            admission: what may precede HTTP/2, such as TLS; None: nothing.
        """
        limits = self._limits = limits or CallLimits()
        self.cluster = cluster
        self._clients = ClientTable()
        self._counts = CallCounts()
        self._sends = Sends(cluster, limits)
        deliveries = Deliveries(cluster)
        self._held = HeldMessages(cluster, deliveries)
        terms = (cluster, self._clients, limits, deliveries, self._held)
        self._receives = Receives(*terms, write_limits)
        self._receipts = ReceiptCalls(*terms)
        self._calls = ClientCalls(
            cluster, self._clients, self._sends, self._held, self._counts, limits, advertised
        )
        self._health = HealthService((SERVICE,))
        self._tasks: set[asyncio.Task[None]] = set()
        self._periodic_tasks = PeriodicTasks()
        self._server = GrpcServer(network, self._methods(), admission=admission, name="proxy")
        self.address: Address = ("", 0)

    async def start(self, address: Address) -> Address:
        """Serve, and return the address, with the port given when 0 was asked.

        Raises:
            AddressInUseError: another socket listens there already.
            ListenFailedError: the address is not this machine's, or is not permitted.
        """
        self.address = await self._server.start(address)
        self._periodic_tasks.start("renew held messages", _RENEW_MS, self._held.renew)
        self._periodic_tasks.start("expire gRPC clients", _EXPIRE_MS, self._calls.expire)
        return self.address

    async def stop(self) -> None:
        """Stop accepting, end the calls, unregister the clients.

        Receives and Telemetry streams end at once, other calls when they are answered, or after
        `STOP_S`.
        """
        await self._periodic_tasks.stop()
        stopping = asyncio.create_task(self._server.stop(STOP_S))
        await asyncio.sleep(0)  # clients see GOAWAY before their calls end
        self._receives.stop()
        self._calls.end_streams()
        self._health.stop()
        await stopping
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._calls.close()
        await self._held.close()
        await self.cluster.close()

    def announce_members(self, members: MemberSync) -> None:
        """Tell other proxies of the consumers from now on, by an exchange that is started."""
        self._calls.members = members

    def metrics(self, labels: Mapping[str, str]) -> list[Family]:
        """Return the metrics as they are now; `labels` name the proxy."""
        return self._counts.families(labels)

    def _methods(self) -> dict[str, Method]:
        calls, sends, receipts = self._calls, self._sends, self._receipts
        unary: dict[str, tuple[Any, Any, Serve]] = {
            "QueryRoute": (v2.QueryRouteRequest, v2.QueryRouteResponse, calls.query_route),
            "Heartbeat": (v2.HeartbeatRequest, v2.HeartbeatResponse, calls.heartbeat),
            "SendMessage": (v2.SendMessageRequest, v2.SendMessageResponse, sends.send),
            "QueryAssignment": (
                v2.QueryAssignmentRequest, v2.QueryAssignmentResponse, calls.query_assignment,
            ),
            "AckMessage": (v2.AckMessageRequest, v2.AckMessageResponse, receipts.ack),
            "ForwardMessageToDeadLetterQueue": (
                v2.ForwardMessageToDeadLetterQueueRequest,
                v2.ForwardMessageToDeadLetterQueueResponse,
                receipts.forward_to_dead_letters,
            ),
            "EndTransaction": (
                v2.EndTransactionRequest, v2.EndTransactionResponse, sends.end_transaction,
            ),
            "NotifyClientTermination": (
                v2.NotifyClientTerminationRequest,
                v2.NotifyClientTerminationResponse,
                calls.terminate,
            ),
            "ChangeInvisibleDuration": (
                v2.ChangeInvisibleDurationRequest,
                v2.ChangeInvisibleDurationResponse,
                receipts.change_invisible,
            ),
            "RecallMessage": (v2.RecallMessageRequest, v2.RecallMessageResponse, sends.recall),
            "SyncLiteSubscription": (
                v2.SyncLiteSubscriptionRequest,
                v2.SyncLiteSubscriptionResponse,
                _refuse_lite_topics,
            ),
        }  # fmt: skip
        methods = {
            f"/{SERVICE}/{name}": Method(Kind.UNARY, self._unary(name, *terms))
            for name, terms in unary.items()
        }
        for name in _UNIMPLEMENTED:
            methods[f"/{SERVICE}/{name}"] = Method(Kind.UNARY, _refuse(name))
        self._add_fast_paths(methods)
        methods[f"/{SERVICE}/ReceiveMessage"] = Method(
            Kind.SERVER_STREAM, self.plain_receives.serve
        )
        methods[f"/{SERVICE}/Telemetry"] = Method(Kind.BIDI, calls.telemetry)
        reflection = ReflectionService((SERVICE, HEALTH, *REFLECTION))
        return {**methods, **self._health.methods(), **reflection.methods()}

    def _add_fast_paths(self, methods: dict[str, Method]) -> None:
        """Serve plain calls on their fast paths; these leave all others to `methods`."""
        send, ack = f"/{SERVICE}/SendMessage", f"/{SERVICE}/AckMessage"
        self.plain_sends = PlainSends(
            self.cluster, self._limits, self._sends.turns, methods[send].handle,
            broker_error_status(is_local=self.cluster.is_local), self._counts,
        )  # fmt: skip
        self.plain_acks = PlainAcks(
            self.cluster, self._clients, self._held, methods[ack].handle, self._counts
        )
        self.plain_receives = PlainReceives(
            self.cluster, self._clients, self._receives, self._on_receive, self._start,
            self._counts,
        )  # fmt: skip
        methods[send] = Method(Kind.UNARY, self.plain_sends.serve)
        methods[ack] = Method(Kind.UNARY, self.plain_acks.serve)

    def _unary(
        self,
        name: str,
        asked: Any,  # noqa: ANN401 - protobuf has no types
        answered: Any,  # noqa: ANN401
        serve: Serve,
    ) -> Callable[[Call, bytes], None]:
        """Return the function of a unary method: it answers each call, or its error."""
        is_send = answered is v2.SendMessageResponse
        failure = broker_error_status(is_local=is_send and self.cluster.is_local)

        async def answer(call: Call, data: bytes) -> None:
            context = None
            try:
                context = _context_of(call)
                response = await serve(call, context, parse(asked, data))
            except Exception as error:  # noqa: BLE001 - the edge of one call
                self._log_fault(error)
                response = answered(status=failure(error))
            call.reply(response.SerializeToString())
            self._counts.add(name, _language_of(context), response.status.code)

        return lambda call, data: self._start(call, answer(call, data))

    def _on_receive(self, call: Call, data: bytes) -> None:
        async def answer() -> None:
            context = None
            try:
                context = _context_of(call)
                asked = parse(v2.ReceiveMessageRequest, data)
                code = await self._receives.receive(call, context, asked)
            except Exception as error:  # noqa: BLE001 - the edge of one call
                self._log_fault(error)
                failure = error_status(error)
                code = failure.code
                call.send(v2.ReceiveMessageResponse(status=failure).SerializeToString())
                call.finish()
            self._counts.add("ReceiveMessage", _language_of(context), code)

        self._start(call, answer())

    def _start(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        call.spend(TASK_WORK)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("grpc_call.failed", exc_info=error)

    def _log_fault(self, error: Exception) -> None:
        """Log an error that is neither the client's nor the broker's."""
        if not isinstance(error, KourouError):
            log.error("grpc_call.failed", exc_info=error)


def _context_of(call: Call) -> CallContext:
    """Return the context of a call.

    Raises:
        CallRefusedError: CLIENT_ID_REQUIRED; the client sent no id.
    """
    context = read_context(call.metadata, call.connection.remote_address[0])
    check_client_id(context)
    return context


def _language_of(context: CallContext | None) -> LanguageCode | None:
    return None if context is None else context.language


async def _refuse_lite_topics(
    _: Call, __: CallContext, asked: v2.SyncLiteSubscriptionRequest
) -> v2.SyncLiteSubscriptionResponse:
    """Refuse a subscription with the code of RocketMQ's local mode."""
    topic = asked.topic.name
    raise CallRefusedError(
        Code.INTERNAL_SERVER_ERROR,
        f"lite topics are not supported: {topic} cannot be subscribed; use a topic of another type",
    )


def _refuse(name: str) -> Callable[[Call, bytes], None]:
    """Return the function of a method that is not served."""
    text = f"Method {SERVICE}/{name} is unimplemented"
    return lambda call, _: call.finish(GrpcStatus.UNIMPLEMENTED, text)
