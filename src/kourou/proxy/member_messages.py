"""Members of consumer groups at other proxies: their messages, and a table of them; pure.

RocketMQ's proxies are the servers of their clients' groups, so that brokers do not know the
members. Each proxy tells the others of its own, by a message for each heartbeat.

Source: HeartbeatSyncer.java, HeartbeatSyncerData.java, RemoteChannelSerializer.java,
GrpcClientChannel.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from kourou.errors import ProtocolError
from kourou.model.subscription import SubscriptionData
from kourou.protocol.clients import ConsumerData
from kourou.protocol.codes import LanguageCode, language_of
from kourou.protocol.connections import Connection, ConsumerConnection
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.json_records import REQUIRED, record_functions, to_json

SYNC_TOPIC: Final = "DefaultHeartBeatSyncerTopic"
SYNC_GROUP: Final = f"CID_{SYNC_TOPIC}"
SYNC_PRODUCER: Final = f"PID_{SYNC_TOPIC}"
REGISTER: Final = "REGISTER"
UNREGISTER: Final = "UNREGISTER"
EXPIRY_S: Final = 120.0
"""Seconds without a heartbeat after which a member is forgotten."""
MEMBERS_MAX: Final = 100_000
SUBSCRIPTION_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limit of the subscriptions of all groups; those beyond it are listed without."""
ADDRESS_CHARS_MAX: Final = 256
_SUBSCRIPTION_BYTES: Final = 512
"""Memory of a subscription besides its texts, about."""
REMOTING: Final = "REMOTING"
GRPC: Final = "GRPC_V2"


EnumT = TypeVar("EnumT", bound=Enum)


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A member of a group that has sent a heartbeat to a proxy, or has left it.

    Attributes:
        heartbeat_type: `REGISTER` or `UNREGISTER`.
        language: name of the client's language.
        version: of the client.
        last_update_timestamp: epoch milliseconds of the message.
        subscriptions, consume_type, message_model, consume_from_where: of the heartbeat; None if
            the member has left.
        local_proxy_id: `ip%remoting port%gRPC port` of the proxy.
        channel_data: the client's connection, as JSON.
    """

    heartbeat_type: str = field(metadata=REQUIRED)
    client_id: str = field(metadata=REQUIRED)
    group: str = field(metadata=REQUIRED)
    local_proxy_id: str = field(metadata=REQUIRED)
    language: str | None = None
    version: int = 0
    last_update_timestamp: int = 0
    subscriptions: Sequence[SubscriptionData] = field(
        default=(), metadata={"wire": "subscriptionDataSet"}
    )
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    channel_data: str | None = None


decode_member_change, encode_member_change = record_functions(MemberChange, "member of a group")


@dataclass(frozen=True, slots=True)
class LocalMember:
    """A member of a group at this proxy.

    Attributes:
        remote_address, local_address: of its connection, `host:port`.
        settings: of a gRPC client, in protobuf's JSON; None: the client speaks remoting.
    """

    client_id: str
    language: LanguageCode
    version: int
    consumer: ConsumerData
    remote_address: str
    local_address: str
    settings: str | None = None

    def is_same_connection(self, other: LocalMember | None) -> bool:
        """Return whether other proxies take both for one member of one group."""
        return other is not None and (
            (self.consumer.group, self.remote_address, self.local_address)
            == (other.consumer.group, other.remote_address, other.local_address)
        )


def member_change(kind: str, member: LocalMember, proxy_id: str, now_ms: int) -> MemberChange:
    """Return the message about a member of this proxy."""
    consumer = member.consumer
    attribute = member.settings
    if attribute is None:
        attribute = dumps([to_json(one) for one in consumer.subscriptions]).decode()
    channel = {
        "remoteProxyIp": proxy_id.partition("%")[0],
        "remoteAddress": member.remote_address,
        "localAddress": member.local_address,
        "type": REMOTING if member.settings is None else GRPC,
        "extendAttribute": attribute,
    }
    is_here = kind == REGISTER
    return MemberChange(
        kind,
        member.client_id,
        consumer.group,
        proxy_id,
        language=member.language.name,
        version=member.version,
        last_update_timestamp=now_ms,
        subscriptions=consumer.subscriptions if is_here else (),
        consume_type=consumer.consume_type.value if is_here else None,
        message_model=consumer.message_model.value if is_here else None,
        consume_from_where=consumer.consume_from_where.value if is_here else None,
        channel_data=dumps(channel).decode(),
    )


class RemoteMembers:
    """Members at other proxies, and the subscriptions of their groups.

    A member that moves from one proxy to another is registered at the new one, often before the
    old one tells that it left: each of its connections is known by itself.
    """

    def __init__(self) -> None:
        self._members: dict[str, dict[str, dict[_Channel, _RemoteMember]]] = {}
        self._count = 0
        self._latest: dict[str, MemberChange] = {}
        self._latest_bytes = 0

    def apply(self, change: MemberChange, now_s: float) -> bool:
        """Note a change; return whether the members of its group are others now."""
        channel = _channel_of(change)
        if change.heartbeat_type == UNREGISTER:
            return self._remove(change.group, change.client_id, channel)
        if change.heartbeat_type != REGISTER:
            return False
        return self._add(change, channel, now_s)

    def _add(self, change: MemberChange, channel: _Channel, now_s: float) -> bool:
        """Note a connection of a member; return whether it is the first one."""
        group, client_id = change.group, change.client_id
        known = self._members.get(group, {}).get(client_id, {})
        if channel not in known:
            if self._count >= MEMBERS_MAX:
                return False
            self._count += 1
        members = self._members.setdefault(group, {})
        member = _RemoteMember(now_s + EXPIRY_S, _connection_of(change, channel))
        members.setdefault(client_id, {})[channel] = member
        self._forget_latest(group)
        size = _size_of(change)
        if self._latest_bytes + size <= SUBSCRIPTION_BYTES_MAX:
            self._latest[group] = replace(change, channel_data=None)
            self._latest_bytes += size
        return not known

    def of(self, group: str, now_s: float) -> list[str]:
        """Return the ids of a group's members."""
        return [one.client_id for one in self._connections(group, now_s)]

    def connection(self, group: str, now_s: float) -> ConsumerConnection | None:
        """Return the members of a group, with the subscriptions of the latest message.

        None: the group has no members at other proxies.
        """
        connections = self._connections(group, now_s)
        if not connections:
            return None
        found = ConsumerConnection(connections)
        latest = self._latest.get(group)
        if latest is None:
            return found
        return replace(
            found,
            consume_type=_named(latest.consume_type, found.consume_type),
            message_model=_named(latest.message_model, found.message_model),
            consume_from_where=_named(latest.consume_from_where, found.consume_from_where),
            subscriptions={one.topic: one for one in latest.subscriptions},
        )

    def expire(self, now_s: float) -> set[str]:
        """Forget members without heartbeats; return their groups."""
        late = [
            (group, client_id, channel)
            for group, members in self._members.items()
            for client_id, channels in members.items()
            for channel, member in channels.items()
            if member.until_s <= now_s
        ]
        return {one[0] for one in late if self._remove(*one)}

    def _connections(self, group: str, now_s: float) -> list[Connection]:
        """Return the latest connection of each member."""
        found = []
        for channels in self._members.get(group, {}).values():
            latest = max(channels.values(), key=lambda one: one.until_s)
            if latest.until_s > now_s:
                found.append(latest.connection)
        return found

    def _remove(self, group: str, client_id: str, channel: _Channel) -> bool:
        """Forget a connection of a member; return whether it was the last one."""
        members = self._members.get(group, {})
        channels = members.get(client_id, {})
        if channels.pop(channel, None) is None:
            return False
        self._count -= 1
        if channels:
            return False
        del members[client_id]
        if not members:
            del self._members[group]
            self._forget_latest(group)
        return True

    def _forget_latest(self, group: str) -> None:
        change = self._latest.pop(group, None)
        if change is not None:
            self._latest_bytes -= _size_of(change)


@dataclass(frozen=True, slots=True)
class _RemoteMember:
    """A connection of a member to another proxy, until the time of the loop at which it expires."""

    until_s: float
    connection: Connection


class _Channel(NamedTuple):
    """Identity of a member's connection; texts that its message does not have are empty."""

    proxy_ip: str
    remote_address: str
    local_address: str
    kind: str


def _channel_of(change: MemberChange) -> _Channel:
    try:
        found = loads((change.channel_data or "").encode())
    except ProtocolError:
        found = None
    values = found if isinstance(found, dict) else {}
    texts = map(values.get, ("remoteProxyIp", "remoteAddress", "localAddress", "type"))
    return _Channel._make(
        text if isinstance(text, str) and len(text) <= ADDRESS_CHARS_MAX else "" for text in texts
    )


def _connection_of(change: MemberChange, channel: _Channel) -> Connection:
    """Return the member as a connected client."""
    language = language_of(change.language or "")
    return Connection(change.client_id, channel.remote_address, language, change.version)


def _size_of(change: MemberChange) -> int:
    """Return about how many bytes the subscriptions of a message take."""
    return sum(
        _SUBSCRIPTION_BYTES + len(one.topic) + 3 * len(one.sub_string)
        for one in change.subscriptions
    )


def _named(text: str | None, default: EnumT) -> EnumT:
    """Return the value of the default's enumeration with this name, or the default."""
    try:
        return type(default)(text)
    except ValueError:
        return default
