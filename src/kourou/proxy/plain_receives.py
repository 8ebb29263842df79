"""Fast path of ReceiveMessage: plain receives, by callbacks instead of a task.

A receive of a known client, group and route, with an open connection for its pops, becomes the
frame of a pop from a template. Requests of one consumer have the same bytes but for their attempt
id, so each of them is parsed and checked once. The broker's answer becomes the stream of the call
at once, if the client can take it all.

All other receives, and answers that need further requests or wait for the client, are left to
`kourou.proxy.receives`; `tests/proxy/test_plain_receives.py` compares the two.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from kourou.client.calls_pop import pop_command
from kourou.client.pop_result import PopResult, read_pop_result
from kourou.errors import KourouError, RequestTimeoutError, TransportError
from kourou.http2.calls import Call
from kourou.model.group import SubscriptionGroup
from kourou.model.route import TopicRoute, subscribe_queues
from kourou.protocol.codes import LanguageCode, RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import frame_of, header_template
from kourou.proxy.call_counts import CallCounts
from kourou.proxy.checks import is_blank
from kourou.proxy.clients import ClientTable, ProxyClient
from kourou.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from kourou.proxy.held_pops import ReceiveCall
from kourou.proxy.metadata import client_of
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.receives import AT_END, PopTerms, Receives
from kourou.proxy.status import is_not_served
from kourou.remoting.connection import Connection
from kourou.remoting.pending import PendingRequest

METHOD: Final = "ReceiveMessage"
_ATTEMPT_START: Final = b"\x42\x24"
"""Tag and size of an attempt id, a UUID, which is the last field of a request."""
_ATTEMPT_BYTES: Final = 38
_HEAD_BYTES_MAX: Final = 1_024
_PLANS_MAX: Final = 4_096
_WAIT_MARKER: Final = 2_147_483_629
_OPAQUE_MARKER: Final = 2_147_483_543
_CODE: Final = int(RequestCode.POP_MESSAGE)

Start = Callable[[Call, Coroutine[Any, Any, None]], None]
"""Runs the rest of a call as a task."""


class _Target(NamedTuple):
    """A broker with queues of the topic.

    Attributes:
        name: of the broker.
        address: of its master.
        template: header of the request, as a format of wait in ms and opaque.
    """

    name: str
    address: str
    template: bytes


class ReceivePlan(NamedTuple):
    """Meaning of requests with the same bytes.

    Attributes:
        asked: the request.
        terms: of the pop.
        route: of the topic; for another one the plan is replaced.
        targets: the brokers that may serve it.
    """

    asked: v2.ReceiveMessageRequest
    terms: PopTerms
    route: TopicRoute
    targets: tuple[_Target, ...]


class PlainReceive(PendingRequest[None]):
    """One call in flight.

    Attributes:
        receives: the fast path.
        call: its call, and the bytes of its request.
        client: of the call, and its language.
        plan: of the request.
        target: the broker.
        group: of the client.
        connection: to the broker.
        sent_at_s: the loop's time of the request.
        is_over: the call has ended before the answer of the broker.
    """

    __slots__ = (
        "call", "client", "connection", "data", "group", "is_over", "language", "plan", "receives",
        "sent_at_s", "target",
    )  # fmt: skip

    def __init__(
        self,
        receives: PlainReceives,
        call: Call,
        data: bytes,
        client: ProxyClient,
        language: LanguageCode | None,
    ) -> None:
        super().__init__(loop=receives.loop)
        self.receives = receives
        self.call = call
        self.data = data
        self.client = client
        self.language = language
        self.plan: ReceivePlan
        self.target: _Target
        self.group: SubscriptionGroup
        self.connection: Connection
        self.sent_at_s = 0.0
        self.is_over = False
        self.code = _CODE

    def on_cancel(self) -> None:
        """Handle that the call ends before the answer of the broker."""
        self.is_over = True
        self.client.pops.abandon(self.target.address)

    def on_answer(self, answer: RemotingCommand) -> None:
        self._settle()
        try:
            result = read_pop_result(
                answer, self.target.name, self.plan.terms.subscription, "",
                self.receives.loop.time(), decompress=False,
            )  # fmt: skip
        except KourouError as error:
            self._fail(error)
            return
        general, is_renewed = self.receives.general, self.plan.asked.auto_renew
        code = general.answer_at_once(
            self.call, self.language, self.client, self.group, result, is_renewed=is_renewed
        )
        if code is None:
            self.receives.start(self.call, self._answer(result))
        else:
            self._count(code)

    def on_failure(self, error: TransportError) -> None:
        self._settle()
        if isinstance(error, RequestTimeoutError):
            self.connection.abort_if_silent(self.sent_at_s)
        self._fail(error)

    def _settle(self) -> None:
        """Stop to count the pop, unless its call is over."""
        if not self.is_over:
            self.call.on_cancel = None
            self.client.pops.end(self.target.address)

    def _fail(self, error: KourouError) -> None:
        receives = self.receives
        if self.call.is_active and not receives.general.is_stopping:
            receives.cluster.on_failure(self.plan.terms.topic, self.target.name, error)
            if is_not_served(error):
                receives.in_general(self.call, self.data)
                return
        self._count(receives.general.fail(self.call, error))

    async def _answer(self, result: PopResult) -> None:
        """Answer on the general path."""
        stream = ReceiveCall(self.call)
        is_renewed = self.plan.asked.auto_renew
        self._count(
            await self.receives.general.answer(
                stream, self.language, self.client, self.group, result, is_renewed=is_renewed
            )
        )

    def _count(self, code: int) -> None:
        self.receives.counts.add(METHOD, self.language, code)


class PlainReceives:
    """Serves plain receives.

    Attributes:
        loop: the event loop.
        cluster: the brokers.
        general: answers the calls.
        in_general: serves all others, and those that must be sent again.
        start: runs the rest of a call as a task.
        counts: counts the calls.
        count: number of plain receives.
    """

    def __init__(
        self,
        cluster: Cluster,
        clients: ClientTable,
        general: Receives,
        in_general: Callable[[Call, bytes], None],
        start: Start,
        counts: CallCounts,
    ) -> None:
        """Create the fast path.

        Args:
            cluster: the brokers.
            clients: those of the proxy.
            general: the general path.
            in_general: serves a call on it.
            start: runs the rest of a call as a task.
            counts: counts the calls.
        """
        self.loop = asyncio.get_running_loop()
        self.cluster = cluster
        self.general = general
        self.in_general = in_general
        self.start = start
        self.counts = counts
        self.count = 0
        self._clients = clients
        self._plans: dict[bytes, ReceivePlan] = {}
        self._turns = itertools.count()

    def serve(self, call: Call, data: bytes) -> None:
        """Serve a call of ReceiveMessage."""
        if not self._begin(call, data):
            self.in_general(call, data)

    def _begin(self, call: Call, data: bytes) -> bool:
        """Pop for the call; return False, without any effect, if the call is not plain."""
        client_id, language = client_of(call)
        if is_blank(client_id) or self.general.is_stopping:
            return False
        client = self._clients.get(client_id)
        if client is None or self._is_ordered(client.group):
            return False  # plans would be wasted: the consumer asks for each queue by itself
        plan = self._plan(data)
        group = None if plan is None else self.cluster.metadata.known_group(plan.terms.group)
        if plan is None or group is None or group.consume_message_orderly:
            return False
        try:
            wait_ms = self.general.wait_ms(call, "", client, plan.asked)
        except KourouError:
            return False
        target = plan.targets[next(self._turns) % len(plan.targets)]
        connection = client.pops.pool.existing(target.address)
        if connection is None:
            return False
        receive = PlainReceive(self, call, data, client, language)
        receive.plan, receive.target, receive.group = plan, target, group
        receive.connection, receive.sent_at_s = connection, self.loop.time()
        receive.timeout_s = wait_ms / 1000 + REQUEST_TIMEOUT_S
        if not connection.register_pending(receive, receive.sent_at_s + receive.timeout_s):
            return False
        client.pops.begin(target.address)
        call.on_cancel = receive.on_cancel
        connection.send_frames(frame_of(target.template % (wait_ms, receive.opaque)))
        self.count += 1
        return True

    def _is_ordered(self, group: str) -> bool:
        """Tell whether a known group is ordered."""
        known = self.cluster.metadata.known_group(group)
        return known is not None and known.consume_message_orderly

    def _plan(self, data: bytes) -> ReceivePlan | None:
        """Return the plan of a request; None if it needs the general path."""
        head = without_attempt(data)
        plan = self._plans.get(head)
        if plan is not None and self.cluster.known_route(plan.terms.topic) is plan.route:
            return plan
        if len(head) > _HEAD_BYTES_MAX:
            return None
        plan = self._new_plan(head)
        if plan is not None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            self._plans[head] = plan
        return plan

    def _new_plan(self, head: bytes) -> ReceivePlan | None:
        try:
            asked = parse(v2.ReceiveMessageRequest, head)
            terms = self.general.terms(asked)
        except (KourouError, ValueError):
            return None
        route = self.cluster.known_route(terms.topic)
        if route is None or asked.attempt_id:
            return None
        brokers = {queue.broker_name for queue in subscribe_queues(terms.topic, route)}
        if asked.message_queue.broker.name:
            brokers &= {asked.message_queue.broker.name}
        targets = []
        for name in sorted(brokers):
            address, template = route.master_address(name), template_of(terms, name)
            if address is None or template is None:
                return None
            targets.append(_Target(name, address, template))
        return ReceivePlan(asked, terms, route, tuple(targets)) if targets else None


def without_attempt(data: bytes) -> bytes:
    """Return a request without its attempt id, if it ends with one.

    The end of another field may look like one: then what is left is not a whole request.
    """
    return data[:-_ATTEMPT_BYTES] if data[-_ATTEMPT_BYTES:-36] == _ATTEMPT_START else data


def template_of(terms: PopTerms, broker_name: str) -> bytes | None:
    """Return the header of a pop as a format of wait in ms and opaque; None if it has none."""
    command = pop_command(
        terms.group, broker_name, subscription=terms.subscription,
        max_messages=terms.max_messages, invisible_ms=terms.invisible_ms, wait_ms=_WAIT_MARKER,
        init_mode=AT_END, attempt_id=None,
    )  # fmt: skip
    command.opaque = _OPAQUE_MARKER
    markers = {b"%d" % _WAIT_MARKER: b"%d", b"%d" % _OPAQUE_MARKER: b"%d"}
    return header_template(command, markers)
