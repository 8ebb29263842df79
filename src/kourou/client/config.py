"""Configuration of clients, producers and administration clients: frozen, checked dataclasses.

The metadata of a field has the key of RocketMQ's corresponding setting, if there is one.
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
"""Upper limit of settings for body sizes: a frame, at most 16 MiB, also holds the properties of the
message and the header."""

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
"""The codes of Java's producer, and FLOW_CONTROL, by which a broker asks for a later retry."""


SERIALIZE_TYPE_VARIABLE: Final = "ROCKETMQ_SERIALIZE_TYPE"
"""Environment variable with the header encoding of clients that do not set `serialize_type`."""


ConfigT = TypeVar("ConfigT", bound="ClientConfig")


@documented
@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Settings common to all clients.

    Raises:
        ConfigError: a value is out of range; the text names the field, the value and the range.
    """

    instance_name: str | None = field(default=None, metadata={"key": "instanceName"})
    """Second part of the client id `ip@instance_name`, which then stays the same after a restart.
    None: a unique name. Two push consumers of one group in one process need different names."""

    client_ip: str | None = field(default=None, metadata={"key": "clientIP"})
    """IP address in client and message ids. None: the address of the interface with the default
    route."""

    request_timeout_ms: int = field(default=3_000, metadata={"key": "mqClientApiTimeout"})
    """Timeout in ms of requests without a timeout of their own: routes, heartbeats, offsets."""

    route_refresh_interval_ms: int = field(
        default=30_000, metadata={"key": "pollNameServerInterval"}
    )
    """Interval in ms at which the routes of all topics in use are refreshed."""

    namesrv_lookup_interval_ms: int = 120_000
    """Interval in ms at which the name server addresses are read from their URL, if one is
    given."""

    heartbeat_interval_ms: int = field(default=30_000, metadata={"key": "heartbeatBrokerInterval"})
    """Interval in ms between heartbeats. Brokers remove a client after 120 s without one."""

    retry_backoff_min_ms: int = 50
    """Delay in ms before the first retry of a failed request; doubled for each further retry, with
    jitter."""

    retry_backoff_max_ms: int = 500
    """Longest delay in ms between two tries."""

    routes_max: int = 10_000
    """Maximum number of cached routes; the least recently used one is evicted first."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """Limits of each connection."""

    tls: TlsClientConfig | None = field(default=None, metadata={"key": "useTLS"})
    """TLS settings for connections to name servers and brokers; `TlsClientConfig()` uses the
    system's trusted certificates. None: plain connections."""

    serialize_type: SerializeType | None = field(
        default=None, metadata={"key": "rocketmq.serialize.type"}
    )
    """Encoding of request headers: JSON, or the smaller binary ROCKETMQ. Every server reads both.
    None: the value of the environment variable ROCKETMQ_SERIALIZE_TYPE, else JSON."""

    namespace: str = ""
    """Namespace of all topics and groups, in the form of RocketMQ 4: servers and other clients see
    `ns%topic`, this client uses plain names. Cannot be combined with `namespace_v2`."""

    namespace_v2: str = field(default="", metadata={"key": "namespaceV2"})
    """Namespace sent in the header of each request, for servers that support namespaces."""

    request_hooks: Sequence[RequestHook] = ()
    """Hooks called before and after each request, to count or to change it; see `RequestHook`."""

    credentials: AnyCredentials | None = None
    """Credentials that sign each request, or a function that returns them, for clusters that
    require signatures. The function is called on the event loop for each request and must not
    block. If it raises, the request fails with a `CredentialsError`. None: requests are not
    signed."""

    enable_trace: bool = field(default=False, metadata={"key": "enableTrace"})
    """Write traces of all messages sent and consumed to `trace_topic`, in the background and in
    RocketMQ's format. Traces that cannot be written are dropped; sending and consuming never wait
    for them."""

    trace_topic: str = field(default=TRACE_TOPIC, metadata={"key": "traceTopic"})
    """Topic of the traces. A broker creates it on first use if it creates topics automatically, or
    at its start if `traceTopicEnable` is set."""

    trace_batch_max: int = field(default=10, metadata={"key": "traceMsgBatchNum"})
    """Number of sends or listener calls whose traces are written together, at the latest after
    5 s."""

    def __post_init__(self) -> None:
        check_credentials(self.credentials)
        for name in (self.namespace, self.namespace_v2):
            check_namespace(name)
        if self.namespace and self.namespace_v2:
            raise ConfigError("namespace and namespace_v2 cannot be combined: set one of them")
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
            raise ConfigError("instance_name is blank; leave it out for a unique name")
        if self.client_ip is not None:
            try:
                pack_address(self.client_ip)
            except InvalidMessageError as error:
                raise ConfigError(f"client_ip: {error}") from None

    def effective_serialize_type(self) -> SerializeType:
        """Return the header encoding: `serialize_type`, or the one of the environment if None.

        Raises:
            ConfigError: as `serialize_type_of_environment`.
        """
        if self.serialize_type is None:
            return serialize_type_of_environment()
        return self.serialize_type

    def all_request_hooks(self) -> list[RequestHook]:
        """Return all request hooks in their order: namespace, hooks of the user, signature."""
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
    """Timeout in ms of one message, including all tries and the delays between them."""

    attempt_timeout_ms: int | None = field(
        default=None, metadata={"key": "sendMsgMaxTimeoutPerRequest"}
    )
    """Timeout in ms of one try. None: the time left for the message. A value below
    `send_timeout_ms` leaves time for another broker if one does not answer, but causes more
    duplicates."""

    refused_attempts_max: int = field(default=3, metadata={"key": "retryTimesWhenSendFailed"})
    """Maximum tries of a message that brokers refuse because the topic does not exist or its
    permission forbids sending; the route is refreshed before each retry. Transient failures are
    retried until the timeout instead."""

    retry_response_codes: frozenset[int] = field(
        default=RETRY_RESPONSE_CODES, metadata={"key": "retryResponseCodes"}
    )
    """Response codes after which a message is sent again: transient ones (such as 2, SYSTEM_BUSY)
    until the timeout, the others at most `refused_attempts_max` times."""

    latency_fault_tolerance: bool = field(default=False, metadata={"key": "sendLatencyEnable"})
    """Avoid brokers that were slow or failed, for a time that grows with their latency (see
    `kourou.client.sending.latency_fault`). Otherwise only the retries of one message avoid a
    broker."""

    latency_detector: bool = field(default=False, metadata={"key": "startDetectorEnable"})
    """With `latency_fault_tolerance`: probe brokers that did not answer, and avoid them until they
    answer a probe."""

    detect_timeout_ms: int = field(default=200, metadata={"key": "detectTimeout"})
    """Timeout in ms of one probe."""

    detect_interval_ms: int = field(default=2_000, metadata={"key": "detectInterval"})
    """Shortest time in ms between two probes of one broker."""

    vip_channel: bool = field(default=False, metadata={"key": "vipChannelEnabled"})
    """Send to the port 2 below the broker's, which serves no pulls that could delay sends."""

    max_message_size_bytes: int = field(default=4 * MIB, metadata={"key": "maxMessageSize"})
    """Largest body in bytes, before compression. Brokers have a limit of their own."""

    compress_body_over_bytes: int | None = field(
        default=4_096, metadata={"key": "compressMsgBodyOverHowmuch"}
    )
    """Bodies of at least this many bytes are compressed, if that makes them smaller. Batches are
    never compressed. None: no compression."""

    compress_type: CompressionType = field(
        default=CompressionType.ZLIB, metadata={"key": "rocketmq.message.compressType"}
    )
    """Compression codec. LZ4 and ZSTD are faster than ZLIB, but need `pip install 'kourou[fast]'`
    for producers and consumers, and Java consumers of version 4.9.4 or later."""

    compress_level: int = field(default=5, metadata={"key": "rocketmq.message.compressLevel"})
    """Compression level: 1 to 9 for ZLIB, 1 to 22 for ZSTD; unused for LZ4."""

    linger_ms: int = field(default=0, metadata={"key": "holdMS"})
    """Time in ms that a message waits for others of its topic, to be sent with them as one batch.
    0: it is sent at once. Useful with many messages in flight, by `submit` or from many tasks; a
    program that awaits each `send` before the next only becomes slower. The default of RocketMQ's
    autoBatch is 10."""

    batch_bytes_max: int = field(default=32 * 1024, metadata={"key": "holdSize"})
    """Size in bytes at which such a batch is sent before `linger_ms` has passed. Larger, delayed
    and compressed messages are sent alone."""

    close_timeout_ms: int | None = None
    """Time in ms that `close` waits for messages in flight. None: until their own timeouts."""

    in_flight_messages_max: int = field(
        default=1_024, metadata={"key": "backPressureForAsyncSendNum"}
    )
    """Maximum number of unanswered messages of `submit`; further calls of `submit` wait."""

    in_flight_bytes_max: int = field(
        default=100 * MIB, metadata={"key": "backPressureForAsyncSendSize"}
    )
    """Maximum size in bytes of the bodies of unanswered messages; a larger message is sent when no
    other is in flight."""

    transaction_threads: int = 8
    """Number of threads for local transactions and transaction checks that are plain functions."""

    transaction_checks_max: int = field(default=2_000, metadata={"key": "checkRequestHoldMax"})
    """Maximum number of transaction checks that run or wait; further ones are ignored, and the
    broker repeats them."""

    requests_waiting_max: int = 10_000
    """Maximum number of requests that wait for replies (`Producer.request`)."""

    auto_create_topic: bool = True
    """Send messages of a topic without a route to the brokers that create topics automatically."""

    default_topic_queue_nums: int = field(default=4, metadata={"key": "defaultTopicQueueNums"})
    """Number of queues on each broker of a topic created in this way; brokers limit it."""

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
            raise ConfigError("latency_detector requires latency_fault_tolerance=True")
        check_range(self, "in_flight_messages_max", 1, 65_535)
        check_range(self, "requests_waiting_max", 1, 1_000_000)
        check_range(self, "in_flight_bytes_max", 1, 16 * 1024 * MIB)
        check_range(self, "default_topic_queue_nums", 1, 1_024)


@documented
@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Settings of an `AdminClient`."""

    admin_timeout_ms: int = 6_000
    """Timeout in ms of one request to one server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "admin_timeout_ms", 1, 3_600_000)


def resolve_config(
    config: ConfigT | None, kind: type[ConfigT], credentials: AnyCredentials | None
) -> ConfigT:
    """Return the config, or by default a new one, completed by the credentials.

    Raises:
        ConfigError: the config is for another kind of client, or both arguments have credentials.
    """
    if config is None:
        config = kind()
    if not isinstance(config, kind):
        raise ConfigError(
            f"config is a {type(config).__name__}: this client takes a {kind.__name__}"
        )
    if credentials is None:
        return config
    if config.credentials is not None:
        raise ConfigError(
            "credentials are set twice, as an argument and in config: pass one of them"
        )
    return replace(config, credentials=credentials)


def check_range(config: ClientConfig, name: str, low: int, high: int) -> None:
    """Raise ConfigError if the field `name` is not an integer from `low` to `high`."""
    value = getattr(config, name)
    if not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}: allowed are {low} to {high}")


def serialize_type_of_environment() -> SerializeType:
    """Return the header encoding of the environment, read as RocketMQ's clients do; default: JSON.

    Raises:
        ConfigError: the value is not an encoding.

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
