"""Settings of clients, producers and administrators: frozen dataclasses, checked when made.

A field's metadata names RocketMQ's own setting where it has one. Durations end in `_ms`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from kourou.auth.credentials import AnyCredentials
from kourou.client.namespacing import NamespaceHook, NamespaceV2Hook
from kourou.client.signing import SigningHook, check_credentials
from kourou.documented import documented
from kourou.errors import ConfigError, InvalidMessageError
from kourou.model.host import pack_address
from kourou.model.namespace import check_namespace
from kourou.model.topic import TRACE_TOPIC, check_topic
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import SerializeType
from kourou.protocol.compression import CompressionType
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.request_hooks import RequestHook
from kourou.remoting.tls import TlsClientConfig

MIB: Final = 1024 * 1024

BODY_SIZE_LIMIT_BYTES: Final = 15 * MIB
"""No frame is larger than 16 MiB, and a message's properties and header need some of it."""

RETRY_RESPONSE_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
"""Those of Java's producer, and FLOW_CONTROL, by which a broker asks to come back later."""


SERIALIZE_TYPE_VARIABLE: Final = "ROCKETMQ_SERIALIZE_TYPE"
"""Environment variable that names the form of headers where the client does not."""


ConfigT = TypeVar("ConfigT", bound="ClientConfig")


@documented
@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What all clients have in common.

    Raises:
        ConfigError: a value is out of its range; the text names the field, value and range.
    """

    instance_name: str | None = field(default=None, metadata={"key": "instanceName"})
    """Makes the client id `ip@instance_name`, the same after a restart. None: one that no other
    client has. Two push consumers of one group in one process must have two names."""

    client_ip: str | None = field(default=None, metadata={"key": "clientIP"})
    """The address in client and message ids. None: that of the interface with the default route."""

    request_timeout_ms: int = field(default=3_000, metadata={"key": "mqClientApiTimeout"})
    """Time in ms for requests that have no timeout of their own: routes, heartbeats, offsets."""

    route_refresh_interval_ms: int = field(
        default=30_000, metadata={"key": "pollNameServerInterval"}
    )
    """Time in ms between two looks at the routes of all topics in use."""

    namesrv_lookup_interval_ms: int = 120_000
    """Time in ms between two looks at the web address that tells the name servers, if one does."""

    heartbeat_interval_ms: int = field(default=30_000, metadata={"key": "heartbeatBrokerInterval"})
    """Time in ms between heartbeats; brokers forget a client after 120 s without one."""

    retry_backoff_min_ms: int = 50
    """Time in ms before a failed request is tried again; doubled each time, with jitter."""

    retry_backoff_max_ms: int = 500
    """Longest time in ms between two tries."""

    routes_max: int = 10_000
    """Topics whose routes are kept; the one unused for the longest time is forgotten first."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """Bounds of each connection."""

    tls: TlsClientConfig | None = field(default=None, metadata={"key": "useTLS"})
    """How to speak TLS with name servers and brokers; `TlsClientConfig()` trusts what the system
    trusts. None: plain connections."""

    serialize_type: SerializeType | None = field(
        default=None, metadata={"key": "rocketmq.serialize.type"}
    )
    """How headers are written: JSON, or ROCKETMQ's binary form, which is smaller. Every server
    reads both. None: what the environment's ROCKETMQ_SERIALIZE_TYPE names, else JSON."""

    namespace: str = ""
    """Put all topics and groups into a namespace, as RocketMQ 4 has them: `ns%topic` to everybody
    else, plain names to this client. Not together with `namespace_v2`."""

    namespace_v2: str = field(default="", metadata={"key": "namespaceV2"})
    """Say a namespace in the header of each request, for servers that know namespaces."""

    request_hooks: Sequence[RequestHook] = ()
    """Called around each request, to count or to change it; see `RequestHook`."""

    credentials: AnyCredentials | None = None
    """Signs each request, for clusters that want that. A function is called on the event loop for
    each request: it must return at once, with the credentials that are valid now. What it raises
    ends the request with a `CredentialsError`. None: requests are not signed."""

    enable_trace: bool = field(default=False, metadata={"key": "enableTrace"})
    """Write traces of all that is sent or consumed into `trace_topic`, in the background and in
    RocketMQ's form. What cannot be written is given up; sending and consuming never wait for it."""

    trace_topic: str = field(default=TRACE_TOPIC, metadata={"key": "traceTopic"})
    """Where traces go. Brokers create it where they create topics by themselves, or at their start
    with `traceTopicEnable`."""

    trace_batch_max: int = field(default=10, metadata={"key": "traceMsgBatchNum"})
    """Sends, or calls of a listener, after whose traces they leave; else after 5 s."""

    def __post_init__(self) -> None:
        check_credentials(self.credentials)
        for name in (self.namespace, self.namespace_v2):
            check_namespace(name)
        if self.namespace and self.namespace_v2:
            raise ConfigError("namespace and namespace_v2 both put names into one: give one")
        check_topic(self.trace_topic)
        check_range(self, "trace_batch_max", 1, 20)
        for name in (
            "request_timeout_ms",
            "route_refresh_interval_ms",
            "namesrv_lookup_interval_ms",
            "heartbeat_interval_ms",
        ):
            check_range(self, name, 1, 3_600_000)
        check_range(self, "retry_backoff_min_ms", 1, 60_000)
        check_range(self, "retry_backoff_max_ms", self.retry_backoff_min_ms, 600_000)
        check_range(self, "routes_max", 1, 1_000_000)
        if self.instance_name is not None and not self.instance_name.strip():
            raise ConfigError("instance_name is blank; leave it out for one of its own")
        if self.client_ip is not None:
            try:
                pack_address(self.client_ip)
            except InvalidMessageError as error:
                raise ConfigError(f"client_ip: {error}") from None

    def serialize_type_now(self) -> SerializeType:
        """Return how headers are written: as set, or else as the environment says.

        Raises:
            ConfigError: the environment names no form.
        """
        if self.serialize_type is None:
            return serialize_type_of_environment()
        return self.serialize_type

    def all_request_hooks(self) -> list[RequestHook]:
        """Return what is called around each request: namespace, user's hooks, signature."""
        hooks: list[RequestHook] = []
        if self.namespace:
            hooks.append(NamespaceHook(self.namespace))
        if self.namespace_v2:
            hooks.append(NamespaceV2Hook(self.namespace_v2))
        hooks += self.request_hooks
        if self.credentials is not None:
            hooks.append(SigningHook(self.credentials))
        return hooks


@documented
@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a `Producer`."""

    send_timeout_ms: int = field(default=3_000, metadata={"key": "sendMsgTimeout"})
    """Time in ms for one message, all its tries and the waits between them included."""

    attempt_timeout_ms: int | None = field(
        default=None, metadata={"key": "sendMsgMaxTimeoutPerRequest"}
    )
    """Time in ms for one try. None: what is left for the message. A value below send_timeout_ms
    leaves time for another broker when one is silent, at the price of more duplicates."""

    refused_attempts_max: int = field(default=3, metadata={"key": "retryTimesWhenSendFailed"})
    """Tries of a message that brokers refuse for the topic's permission or absence, each after a
    look at the route. Failures that pass by themselves are retried until the timeout instead."""

    retry_response_codes: frozenset[int] = field(
        default=RETRY_RESPONSE_CODES, metadata={"key": "retryResponseCodes"}
    )
    """Answers after which a message is tried again: those that pass by themselves (such as 2,
    SYSTEM_BUSY) until the timeout, the others `refused_attempts_max` times."""

    latency_fault_tolerance: bool = field(default=False, metadata={"key": "sendLatencyEnable"})
    """Spare brokers that were slow or failed, for a time that grows with their latency (see
    `kourou.client.sending.latency_fault`). Without, only tries of one message avoid a broker."""

    latency_detector: bool = field(default=False, metadata={"key": "startDetectorEnable"})
    """With fault tolerance: probe brokers that did not answer, and spare them until they do."""

    detect_timeout_ms: int = field(default=200, metadata={"key": "detectTimeout"})
    """Time in ms for one probe."""

    detect_interval_ms: int = field(default=2_000, metadata={"key": "detectInterval"})
    """Shortest time in ms between two probes of one broker."""

    vip_channel: bool = field(default=False, metadata={"key": "vipChannelEnabled"})
    """Send to the port 2 below the broker's, which serves no pulls that could be in the way."""

    max_message_size_bytes: int = field(default=4 * MIB, metadata={"key": "maxMessageSize"})
    """Largest body in bytes, before compression. Brokers have such a limit too."""

    compress_body_over_bytes: int | None = field(
        default=4_096, metadata={"key": "compressMsgBodyOverHowmuch"}
    )
    """Bodies of at least this many bytes are compressed, if that makes them smaller. Batches are
    not. None: never."""

    compress_type: CompressionType = field(
        default=CompressionType.ZLIB, metadata={"key": "rocketmq.message.compressType"}
    )
    """How: LZ4 and ZSTD are faster, need `pip install 'kourou[fast]'` on both sides, and Java
    consumers from 4.9.4 on."""

    compress_level: int = field(default=5, metadata={"key": "rocketmq.message.compressLevel"})
    """The codec's effort: 1 to 9 for ZLIB, 1 to 22 for ZSTD; LZ4 has none."""

    linger_ms: int = field(default=0, metadata={"key": "holdMS"})
    """Time in ms that a message waits for others of its topic, to leave with them as one batch.
    0: it leaves at once. Worth while with many messages under way, by `submit` or many tasks; a
    program that awaits each `send` before the next only becomes slower. RocketMQ's autoBatch has
    10."""

    batch_bytes_max: int = field(default=32 * 1024, metadata={"key": "holdSize"})
    """Bytes at which such a batch leaves before its time. Larger messages go alone, and so do
    delayed ones and those that are compressed."""

    close_timeout_ms: int | None = None
    """Time in ms that `close` waits for messages under way. None: until their own timeouts."""

    in_flight_messages_max: int = field(
        default=1_024, metadata={"key": "backPressureForAsyncSendNum"}
    )
    """Messages handed to `submit` and not answered; `submit` waits when there are more."""

    in_flight_bytes_max: int = field(
        default=100 * MIB, metadata={"key": "backPressureForAsyncSendSize"}
    )
    """Bytes of their bodies; a single larger message goes alone."""

    transaction_threads: int = 8
    """Threads on which plain functions of transactions run: local ones, and checks."""

    transaction_checks_max: int = field(default=2_000, metadata={"key": "checkRequestHoldMax"})
    """Checks of transactions that run or wait at once; more are left to the broker's next try."""

    requests_waiting_max: int = 10_000
    """Requests that wait for replies at once (`Producer.request`)."""

    auto_create_topic: bool = True
    """A topic without a route is sent to the brokers that create topics by themselves."""

    default_topic_queue_nums: int = field(default=4, metadata={"key": "defaultTopicQueueNums"})
    """Queues on each broker of a topic that is created in this way; brokers cap it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "send_timeout_ms", 1, 3_600_000)
        if self.attempt_timeout_ms is not None:
            check_range(self, "attempt_timeout_ms", 1, self.send_timeout_ms)
        check_range(self, "refused_attempts_max", 1, 100)
        check_range(self, "max_message_size_bytes", 1, BODY_SIZE_LIMIT_BYTES)
        check_range(self, "transaction_threads", 1, 1_000)
        check_range(self, "transaction_checks_max", 1, 1_000_000)
        if self.compress_body_over_bytes is not None:
            check_range(self, "compress_body_over_bytes", 1, BODY_SIZE_LIMIT_BYTES)
        is_zstd = self.compress_type is CompressionType.ZSTD
        check_range(self, "compress_level", 1, 22 if is_zstd else 9)
        check_range(self, "linger_ms", 0, self.send_timeout_ms)
        check_range(self, "batch_bytes_max", 1, BODY_SIZE_LIMIT_BYTES)
        if self.close_timeout_ms is not None:
            check_range(self, "close_timeout_ms", 0, 3_600_000)
        check_range(self, "detect_timeout_ms", 1, 60_000)
        check_range(self, "detect_interval_ms", 1, 3_600_000)
        if self.latency_detector and not self.latency_fault_tolerance:
            raise ConfigError("latency_detector is True: it needs latency_fault_tolerance")
        check_range(self, "in_flight_messages_max", 1, 65_535)
        check_range(self, "requests_waiting_max", 1, 1_000_000)
        check_range(self, "in_flight_bytes_max", 1, 16 * 1024 * MIB)
        check_range(self, "default_topic_queue_nums", 1, 1_024)


@documented
@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of an `AdminClient`."""

    admin_timeout_ms: int = 6_000
    """Time in ms for one request to one server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "admin_timeout_ms", 1, 3_600_000)


def given_config(
    config: ConfigT | None, kind: type[ConfigT], credentials: AnyCredentials | None
) -> ConfigT:
    """Return what a client was given, or the defaults, with the credentials given beside it.

    Raises:
        ConfigError: it is for another kind of client, or has credentials of its own.
    """
    if config is None:
        config = kind()
    if not isinstance(config, kind):
        raise ConfigError(
            f"config is of {type(config).__name__}: this client takes a {kind.__name__}"
        )
    if credentials is None:
        return config
    if config.credentials is not None:
        raise ConfigError("credentials are given beside a config that has some: give them once")
    return replace(config, credentials=credentials)


def check_range(config: ClientConfig, name: str, low: int, high: int) -> None:
    """Refuse a value of the field `name` outside `low` to `high`."""
    value = getattr(config, name)
    if not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}: allowed are {low} to {high}")


def serialize_type_of_environment() -> SerializeType:
    """Return what the environment names, as RocketMQ's clients read it; JSON where it does not.

    Raises:
        ConfigError: it names no form.

    Source: RemotingCommand.java.
    """
    name = os.environ.get(SERIALIZE_TYPE_VARIABLE, "").strip()
    if not name:
        return SerializeType.JSON
    try:
        return SerializeType[name]
    except KeyError:
        raise ConfigError(
            f"{SERIALIZE_TYPE_VARIABLE} is {name!r}: allowed are JSON and ROCKETMQ"
        ) from None
