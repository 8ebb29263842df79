"""Who is connected: producers and consumers by group, as their heartbeats say.

A table and nothing else: no I/O, no clock of its own. Who sends heartbeats and who is told of a
change is `client_handlers.py`. A member of a group is a connection, named by its client id; it
leaves by unregistering, by closing, or by silence.

Source: ConsumerManager.java, ConsumerGroupInfo.java, ProducerManager.java, apache/rocketmq 5.5.0.
Two differences, both for rebalancing clients: a client that connects again before its old
connection is gone is listed once, and a group is told of members that leave by silence too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from kourou.broker.subscription_kinds import SubscriptionKinds
from kourou.errors import InvalidParameterError, SystemBusyError
from kourou.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from kourou.model.subscription import SubscriptionData
from kourou.protocol.bodies_client import ConsumerData, HeartbeatData
from kourou.protocol.command import RemotingCommand

log = logging.getLogger(__name__)

CONSUMER_GROUPS_MAX: Final = 200
"""Consumer groups that one client may be in: each may make a group and a retry topic."""
PRODUCER_GROUPS_MAX: Final = 2000
"""Producer groups that one client may be in."""
SUBSCRIPTIONS_MAX: Final = 1000
"""Topics that one group may subscribe to: they are kept for as long as it has a member."""
SUBSCRIPTION_BYTES_MAX: Final = 128 * 1024 * 1024
"""About the memory that the subscriptions of all groups may take; a usual one takes 700 bytes."""
NAME_LENGTH_MAX: Final = 1024
"""Characters of a client id, and of a producer group; Java's clients' ids have about 50."""


class Peer(Protocol):
    """A connection, as far as the broker addresses it by itself. Compared by identity."""

    @property
    def remote_address(self) -> tuple[str, int]: ...

    def send(self, command: RemotingCommand) -> None: ...

    def close(self, reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class Member:
    """One connection in one group.

    Attributes:
        language: the code of the client's language, see `LanguageCode`.
        version: the client's release, as `VERSION` counts them.
        seen_at_ms: when its last heartbeat came, on the caller's clock.
    """

    client_id: str
    peer: Peer
    language: int
    version: int
    seen_at_ms: int


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """The live consumers of a group; it goes with its last member.

    Attributes:
        members: in the order in which they joined.
        subscriptions: by topic; all members of a group must subscribe to the same.
        fingerprint: of the heartbeat that brought `subscriptions`; 0 when it carried none.
        size_bytes: about the memory that `subscriptions` take.
        kinds: what each member told, to see whether they want the same.
    """

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    members: dict[Peer, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    fingerprint: int = 0
    size_bytes: int = 0
    kinds: SubscriptionKinds = field(default_factory=SubscriptionKinds)

    def client_ids(self) -> list[str]:
        """Return the ids of the members, each once, in the order in which they joined."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))


@dataclass(slots=True)
class _Groups:
    """The groups of one connection, so that its end costs no search."""

    consumer: set[str] = field(default_factory=set)
    producer: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.consumer or self.producer)


class Clients:
    """All producers and consumers that are connected, by group.

    Attributes:
        on_emptied: told of each consumer group whose last member left. Must not raise.
    """

    def __init__(
        self,
        on_changed: Callable[[ConsumerGroup], None],
        *,
        clients_max: int = 100_000,
        expiry_ms: int = 120_000,
    ) -> None:
        """Start empty.

        Args:
            on_changed: told of each consumer group whose members or subscribed topics changed,
                after the change and as long as a member is left. Must not raise.
            clients_max: memberships in all groups together.
            expiry_ms: a member that was silent for longer has left.
        """
        self.on_emptied: Callable[[str], None] = lambda _group: None
        self._on_changed = on_changed
        self._clients_max = clients_max
        self._expiry_ms = expiry_ms
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Peer, Member]] = {}
        self._producer_ids: dict[str, Member] = {}  # by client id, the one heard last
        self._groups_of: dict[Peer, _Groups] = {}
        self._count = 0
        self._subscription_bytes = 0

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return the live group, None when no consumer of it is connected."""
        return self._consumers.get(group)

    def consumer_groups(self) -> list[ConsumerGroup]:
        """Return all live groups."""
        return list(self._consumers.values())

    def all_producers(self) -> Iterator[Member]:
        """Yield each connected producer, once for each of its groups."""
        for members in self._producers.values():
            yield from members.values()

    def producer(self, client_id: str) -> Member | None:
        """Return the producer with this id; of two connections, the one that was heard last."""
        return self._producer_ids.get(client_id)

    def member(self, group: str, client_id: str) -> Member | None:
        """Return the consumer with this id; of two with the same, the one that joined later."""
        live = self._consumers.get(group)
        if live is None:
            return None
        found = [one for one in live.members.values() if one.client_id == client_id]
        return found[-1] if found else None

    def subscribers(self, topic: str) -> list[str]:
        """Return the live consumer groups that subscribe to the topic."""
        return [name for name, live in self._consumers.items() if topic in live.subscriptions]

    def producer_groups(self) -> list[str]:
        """Return the groups that have connected producers."""
        return list(self._producers)

    def producers(self, group: str) -> list[Member]:
        """Return the connected producers of the group."""
        return list(self._producers.get(group, {}).values())

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return what the live group subscribed to in the topic."""
        live = self._consumers.get(group)
        return live.subscriptions.get(topic) if live is not None else None

    def check(self, member: Member, heartbeat: HeartbeatData) -> None:
        """Refuse a heartbeat whose groups could not all be registered; changes nothing.

        Several groups that have room each, and not together, pass: the last is refused when it is
        registered.

        Raises:
            SystemBusyError, InvalidParameterError: as `register_consumer`, `register_producer`.
        """
        for kind, groups, most in (
            ("consumer", heartbeat.consumers, CONSUMER_GROUPS_MAX),
            ("producer", heartbeat.producers, PRODUCER_GROUPS_MAX),
        ):
            if len(groups) > most:
                raise InvalidParameterError(
                    29,
                    f"client {heartbeat.client_id[:NAME_LENGTH_MAX]} is in {len(groups)} {kind} "
                    f"groups; at most {most} are allowed: use several clients",
                )
        for data in heartbeat.consumers:
            self._check_consumer(member, data)
        for group in heartbeat.producers:
            self._check_producer(member, group)

    def register_consumer(
        self, member: Member, data: ConsumerData, *, fingerprint: int = 0, without_sub: bool = False
    ) -> bool:
        """Note a consumer's heartbeat.

        Args:
            member: the connection, with the time of the heartbeat.
            data: the group and its subscriptions.
            fingerprint: of the heartbeat's content; 0 in the older form.
            without_sub: the sender left its subscriptions out because they did not change.

        Returns:
            Whether the sender must send its subscriptions with the next heartbeat: what is held
            here is not what it has, or was replaced by another.

        Raises:
            SystemBusyError: as many clients or subscriptions are registered as may be.
            InvalidParameterError: more subscriptions than a group may have, or the client id is
                too long. Nothing changed.
        """
        self._check_consumer(member, data)
        live = self._consumers.get(data.group)
        if live is None:
            live = self._consumers[data.group] = ConsumerGroup(
                data.group, data.consume_type, data.message_model, data.consume_from_where
            )
        live.consume_type = data.consume_type
        live.message_model = data.message_model
        live.consume_from_where = data.consume_from_where
        is_changed = self._join(live.members, member)
        self._groups_of.setdefault(member.peer, _Groups()).consumer.add(data.group)
        if without_sub:
            must_send = live.fingerprint != fingerprint
        else:
            must_send = live.fingerprint not in (0, fingerprint)
            live.fingerprint = fingerprint
            live.kinds.note(data.group, member.peer, member.client_id, data.subscriptions)
            is_changed |= _update_subscriptions(live, data.subscriptions)
            self._subscription_bytes -= live.size_bytes
            live.size_bytes = sum(map(_size_bytes, live.subscriptions.values()))
            self._subscription_bytes += live.size_bytes
        if is_changed:
            log.info("consumer_group.changed group=%s members=%d", data.group, len(live.members))
            self._on_changed(live)
        return must_send

    def register_producer(self, member: Member, group: str) -> None:
        """Note a producer's heartbeat.

        Raises:
            SystemBusyError: as many clients are registered as may be.
            InvalidParameterError: the client id or the group's name is too long.
        """
        self._check_producer(member, group)
        members = self._producers.setdefault(group, {})
        known = members.get(member.peer)
        self._join(members, member)
        self._groups_of.setdefault(member.peer, _Groups()).producer.add(group)
        if known is not None and known.client_id != member.client_id:
            self._forget_producer_id(known)
        self._producer_ids[member.client_id] = member

    def unregister_consumer(self, peer: Peer, group: str) -> None:
        """Take the connection out of the consumer group; nothing happens if it is not in it."""
        live = self._consumers.get(group)
        if live is None or live.members.pop(peer, None) is None:
            return
        self._left(peer, self._groups_of[peer].consumer, group)
        live.kinds.forget(group, peer)
        if not all(map(live.kinds.is_wanted, live.subscriptions.values())):
            live.fingerprint = 0  # those that stay are to tell again what they want
        log.info("consumer_group.changed group=%s members=%d", group, len(live.members))
        if live.members:
            self._on_changed(live)
        else:
            del self._consumers[group]
            self._subscription_bytes -= live.size_bytes
            self.on_emptied(group)

    def unregister_producer(self, peer: Peer, group: str) -> None:
        """Take the connection out of the producer group; nothing happens if it is not in it."""
        members = self._producers.get(group)
        left = None if members is None else members.pop(peer, None)
        if members is None or left is None:
            return
        self._left(peer, self._groups_of[peer].producer, group)
        if not members:
            del self._producers[group]
        self._forget_producer_id(left)

    def closed(self, peer: Peer) -> None:
        """Take a closed connection out of all its groups."""
        groups = self._groups_of.get(peer)
        if groups is None:
            return
        for group in sorted(groups.consumer):
            self.unregister_consumer(peer, group)
        for group in sorted(groups.producer):
            self.unregister_producer(peer, group)

    def expire(self, now_ms: int) -> list[Peer]:
        """Take out who was silent for too long, and return these connections, each once."""
        before = now_ms - self._expiry_ms
        silent: dict[Peer, None] = {}
        for live in list(self._consumers.values()):
            for peer in _silent(live.members.values(), before):
                self.unregister_consumer(peer, live.name)
                silent[peer] = None
        for group, members in list(self._producers.items()):
            for peer in _silent(members.values(), before):
                self.unregister_producer(peer, group)
                silent[peer] = None
        return list(silent)

    def _check_consumer(self, member: Member, data: ConsumerData) -> None:
        """Raise what `register_consumer` raises."""
        _check_length("client id", member.client_id)
        if len(data.subscriptions) > SUBSCRIPTIONS_MAX:
            raise InvalidParameterError(
                29,
                f"group {data.group} subscribes to {len(data.subscriptions)} topics; at most "
                f"{SUBSCRIPTIONS_MAX} are allowed: split it into several groups",
            )
        size_bytes = sum(map(_size_bytes, data.subscriptions))
        self._check_room(self._consumers.get(data.group), member.peer, size_bytes)

    def _check_producer(self, member: Member, group: str) -> None:
        """Raise what `register_producer` raises."""
        _check_length("client id", member.client_id)
        _check_length("producer group", group)
        members = self._producers.get(group)
        if members is None or member.peer not in members:
            self._check_count()

    def _check_room(self, live: ConsumerGroup | None, peer: Peer, size_bytes: int) -> None:
        """Refuse a heartbeat that would bring more than there is room for."""
        if live is None or peer not in live.members:
            self._check_count()
        held_bytes = self._subscription_bytes - (live.size_bytes if live is not None else 0)
        if size_bytes and held_bytes + size_bytes > SUBSCRIPTION_BYTES_MAX:
            raise SystemBusyError(
                2,
                f"subscriptions of {held_bytes} bytes are registered; {size_bytes} more exceed "
                f"the limit of {SUBSCRIPTION_BYTES_MAX}",
            )

    def _check_count(self) -> None:
        if self._count >= self._clients_max:
            raise SystemBusyError(
                2, f"{self._count} clients are registered, as many as clients_max allows"
            )

    def _join(self, members: dict[Peer, Member], member: Member) -> bool:
        """Put the member in and return whether it is a new one."""
        known = members.get(member.peer)
        members[member.peer] = member
        if known is None:
            self._count += 1
        return known is None or known.client_id != member.client_id

    def _forget_producer_id(self, left: Member) -> None:
        """Forget under which id a connection was a producer, unless another group has it so."""
        held = self._producer_ids.get(left.client_id)
        if held is None or held.peer is not left.peer:
            return
        groups = self._groups_of.get(left.peer)
        for group in groups.producer if groups is not None else ():
            if self._producers[group][left.peer].client_id == left.client_id:
                return
        del self._producer_ids[left.client_id]

    def _left(self, peer: Peer, groups: set[str], group: str) -> None:
        """Forget that the connection is in the group, which is one of `groups`."""
        self._count -= 1
        groups.remove(group)
        if not self._groups_of[peer]:
            del self._groups_of[peer]


def _update_subscriptions(live: ConsumerGroup, told: Collection[SubscriptionData]) -> bool:
    """Replace the group's subscriptions and return whether topics came or went.

    A subscription that is older than the one that is held does not replace it as long as a member
    wants that: heartbeats of two members may cross. Versions are times of the members' clocks, and
    one that is behind may never get ahead of what a member said that has left.
    """
    topics = {subscription.topic for subscription in told}
    is_changed = topics != live.subscriptions.keys()
    for topic in live.subscriptions.keys() - topics:
        del live.subscriptions[topic]
    for subscription in told:
        held = live.subscriptions.get(subscription.topic)
        is_newer = held is None or subscription.sub_version > held.sub_version
        if is_newer or not live.kinds.is_wanted(live.subscriptions[subscription.topic]):
            live.subscriptions[subscription.topic] = subscription
    return is_changed


def _size_bytes(subscription: SubscriptionData) -> int:
    """Return about the memory that a subscription takes."""
    tags = subscription.tags_set
    texts = len(subscription.topic) + len(subscription.sub_string) + sum(map(len, tags))
    return 500 + texts + 100 * (len(tags) + len(subscription.code_set))


def _check_length(what: str, name: str) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidParameterError(
            29, f"a {what} of {len(name)} characters; at most {NAME_LENGTH_MAX} are allowed"
        )


def _silent(members: Iterable[Member], before: int) -> list[Peer]:
    return [member.peer for member in members if member.seen_at_ms < before]
