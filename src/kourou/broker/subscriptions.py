"""What live groups want: noted as their members tell it, and asked for where it is out of date.

A pull names the version of its member's subscription. With one newer than what is known here, it
might be sent what the member no longer wants: Java's broker refuses it (25, 28), the client tries
again after 3 s, and its next heartbeat is to bring the newer one. But Java's client gives a
subscription a new version whenever it shares out the queues, and skips the heartbeat that would
tell it if another is under way; both are due one second after its start. Its queues then stand
still until the next whole heartbeat: for 30 s, and for ever where heartbeats leave subscriptions
out. So here the pull waits while the member is asked how it runs (307), which says what it wants.

Source: ConsumerManager.java, RebalancePushImpl.java, MQClientInstance.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kourou.broker.client_calls import RELAY_VERSION_MIN, CallClient
from kourou.broker.clients import Clients, Member, Peer
from kourou.broker.consuming.retry_topics import TopicTable
from kourou.broker.pulling.consumer_filters import ConsumerFilters
from kourou.broker.pulling.held_pulls import HeldPulls
from kourou.errors import ProtocolError, RemoteError, TransportError
from kourou.model.subscription import SubscriptionData
from kourou.protocol.bodies_client import ConsumerData
from kourou.protocol.bodies_running import decode_consumer_running_info
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.headers_admin_clients import GetConsumerRunningInfoRequestHeader
from kourou.remoting.check import raise_for_response

log = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 3.0
"""How long its pulls wait for a member to say what it wants; Java's clients wait 10 s at least."""


class Subscriptions:
    """Brings what members tell to all who must know it: the table, filters, pulls that wait."""

    def __init__(
        self,
        clients: Clients,
        topics: TopicTable,
        filters: ConsumerFilters,
        held: HeldPulls,
        call_client: CallClient,
    ) -> None:
        """Note in `clients`.

        Args:
            clients: who is connected.
            topics: those that pulls may wait for.
            filters: told of subscriptions by properties.
            held: pulls that wait for what their group wanted before.
            call_client: the way to a member.
        """
        self._clients = clients
        self._topics = topics
        self._filters = filters
        self._held = held
        self._call_client = call_client
        self._asking: dict[tuple[Peer, str], asyncio.Task[None]] = {}

    def begin_heartbeat(self) -> None:
        """See `ConsumerFilters.begin_heartbeat`; to be called before what one request tells."""
        self._filters.begin_heartbeat()

    def note(
        self, member: Member, data: ConsumerData, *, fingerprint: int = 0, without_sub: bool = False
    ) -> bool:
        """Note what a member told of itself and of its group; pulls that wait are served by it.

        Arguments, answer and errors are those of `Clients.register_consumer`.
        """
        if without_sub:
            return self._clients.register_consumer(
                member, data, fingerprint=fingerprint, without_sub=True
            )
        before = dict(self._wanted(data.group))
        must_send = self._clients.register_consumer(member, data, fingerprint=fingerprint)
        is_all = self._filters.register(
            data.group, self._wanted(data.group).values(), member.peer.remote_address[0]
        )
        self._serve_changed(data.group, before)
        return must_send or not is_all

    def ask(self, peer: Peer, group: str, topic: str, then: Callable[[], None]) -> bool:
        """Ask a member what it wants of the topic, note that, and call `then`.

        Members that are asked already are not asked again. `then` is called even if no answer
        came within `ASK_TIMEOUT_S`, or none that tells; not when the broker stops. It must not
        raise.

        Returns:
            False, and nothing happens, if the connection is no member of the group, or too old to
            know the question.
        """
        live = self._clients.consumer_group(group)
        member = live.members.get(peer) if live is not None else None
        if member is None or member.version < RELAY_VERSION_MIN:
            return False
        asking = self._asking.get((peer, group))
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(member, group, topic))
            self._asking[peer, group] = asking
            asking.add_done_callback(lambda _: self._asking.pop((peer, group)))
        asking.add_done_callback(lambda task: None if task.cancelled() else then())
        return True

    def close(self) -> None:
        """Wait for no answer any more."""
        for task in self._asking.values():
            task.cancel()

    async def _ask(self, member: Member, group: str, topic: str) -> None:
        header = GetConsumerRunningInfoRequestHeader(group, member.client_id)
        asked = request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        try:
            answer = await self._call_client(member.peer, asked, ASK_TIMEOUT_S)
            raise_for_response(answer)
            told = decode_consumer_running_info(answer.body).subscriptions
            self._note_told(member, group, topic, told)
        except (TransportError, ProtocolError, RemoteError) as error:
            log.info(
                "subscription.not_told group=%s client=%s reason=%s", group, member.client_id, error
            )

    def _note_told(
        self, member: Member, group: str, topic: str, told: Sequence[SubscriptionData]
    ) -> None:
        """Note all that the member wants, unless it left meanwhile, or does not tell of `topic`."""
        live = self._clients.consumer_group(group)
        if live is None or member.peer not in live.members:
            return
        if all(one.topic != topic for one in told):
            raise ProtocolError(f"it does not say what it wants of topic {topic}")
        data = ConsumerData(
            group, live.consume_type, live.message_model, live.consume_from_where, told
        )
        self.begin_heartbeat()
        self.note(live.members[member.peer], data, fingerprint=live.fingerprint)
        log.info("subscription.told group=%s client=%s", group, member.client_id)

    def _wanted(self, group: str) -> Mapping[str, SubscriptionData]:
        live = self._clients.consumer_group(group)
        return {} if live is None else live.subscriptions

    def _serve_changed(self, group: str, before: Mapping[str, SubscriptionData]) -> None:
        """Have pulls served by what the group wants now: what they wait for may not come."""
        for name, wanted in self._wanted(group).items():
            old, topic = before.get(name, wanted), self._topics.get(name)
            is_other = (old.sub_string, old.expression_type) != (
                wanted.sub_string,
                wanted.expression_type,
            )
            if is_other and topic is not None:
                self._held.on_subscription_changed(group, topic)
