"""Every exception that this package raises, as one tree.

Errors are grouped by the party at fault:

    UsageError       the caller made a mistake
    ProtocolError    the peer's bytes violate the protocol: close the connection
    TransportError   the network failed: the same call may succeed later
    RemoteError      the peer answered with a code other than SUCCESS
    StoreError       a file of the store cannot be read or written
    InternalError    a bug in Kourou

Broker replies and the command line's exit codes are derived from this tree.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

ACL_EXCEPTION: Final = "AclException"
"""Part of the remark with which RocketMQ 4 brokers refuse a request for lack of access rights."""

_NO_PERMISSION: Final = 16
_UNSIGNED: Final = re.compile(r"username cannot be null|no accesskey is configured", re.IGNORECASE)
_REJECTED: Final = re.compile(
    r"check signature failed|user:\S* (is )?(not found|disabled)|no acl config for"
    r"|authentication failed",
    re.IGNORECASE,
)
"""Parts of the remarks of RocketMQ 4 and 5 brokers: `_UNSIGNED` for a request without a signature,
`_REJECTED` for one with a wrong signature or user."""


class KourouError(Exception):
    """Base of every error raised by this package.

    Attributes:
        retriable: the same call may succeed later without any change.
        refresh_route: the caller's route may be stale; fetch it again before retrying.
        suspects_route: overload is the usual reason, but the broker may also have been replaced by
            another master; fetch the route again, at a limited rate.
    """

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False
    suspects_route: ClassVar[bool] = False


class UsageError(KourouError):
    """The call cannot succeed as written; the caller must change it."""


class ConfigError(UsageError, ValueError):
    """A configuration key is unknown, or a value is out of its range."""


class CredentialsError(ConfigError):
    """A client's credentials cannot be read or used, or the function that returns them failed."""


class InvalidMessageError(UsageError, ValueError):
    """A message exceeds a limit, lacks a required value or has an invalid one."""


class InvalidTopicError(UsageError, ValueError):
    """A topic name is empty, too long, reserved or has a forbidden character."""


class InvalidGroupError(UsageError, ValueError):
    """A group name is empty, too long, reserved or already taken in this process."""


class FilterSyntaxError(UsageError, ValueError):
    """A subscription expression does not parse.

    Attributes:
        position: index of the first invalid character.
    """

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"{reason} (at character {position})")
        self.position = position


class FilterEvaluationError(UsageError, ValueError):
    """A filter expression has no result for a message; the message does not match."""


class ListenFailedError(UsageError):
    """A server could not open its port.

    Attributes:
        address: the configured listen address, as `host:port`.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot listen on {address}: {reason}")
        self.address = address


class AddressInUseError(ListenFailedError):
    """Another process, or another server in this process, listens on the port."""

    def __init__(self, address: str) -> None:
        super().__init__(
            address, "the port is in use: stop the server that uses it, or choose another port"
        )


class ClosedError(UsageError):
    """An operation was called on an object that is closed or was never started."""


class ForkedError(UsageError):
    """A client was used in a process forked from the one that created it."""


class CodecMissingError(UsageError):
    """A message body needs a codec whose package is not installed.

    Attributes:
        package: name of the missing package.
    """

    def __init__(self, package: str) -> None:
        super().__init__(f"a message body needs the package {package}: pip install 'kourou[fast]'")
        self.package = package


class PackageMissingError(UsageError):
    """A feature needs a package that is not installed.

    Attributes:
        package: name of the missing package.
        extra: the extra of Kourou that installs it.
    """

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs the package {package}: pip install 'kourou[{extra}]'")
        self.package = package
        self.extra = extra


class NotARequestError(UsageError):
    """A message cannot be replied to: its properties say that its producer expects no reply."""


class DuplicateInProgressError(UsageError):
    """A message was redelivered while its first delivery is still being handled.

    The broker delivers it again later.
    """


class JavaNotFoundError(UsageError):
    """Spark was requested on a machine that has no Java version supported by Spark."""


class CheckpointError(UsageError):
    """The checkpoint of a Spark query holds offsets that this version cannot read."""


class JobFailedError(KourouError):
    """A Spark job failed for a reason that is not an error of Kourou, such as a lost executor."""


class CallRefusedError(UsageError):
    """The proxy refuses a gRPC call.

    Attributes:
        code: the status code that the client receives, such as 40002 (ILLEGAL_TOPIC).
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class ProtocolError(KourouError):
    """The peer sent bytes that violate the protocol; the connection must be closed."""


_HTTP_SIZE: Final = 0x48545450
"""The first four bytes of `HTTP/1.1 400`, read as a frame size."""
_TLS_SIZE: Final = 0x1503
"""The first two bytes of a TLS alert: the upper half of a frame size."""


class FrameTooLargeError(ProtocolError):
    """A frame announced more bytes than this side accepts.

    Attributes:
        size: the announced size in bytes.
        limit: the largest accepted size in bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        text = f"frame of {size} bytes exceeds the limit of {limit} bytes"
        if size == _HTTP_SIZE:
            text = "the peer speaks HTTP: it is a web server, or the port of /metrics"
        elif size >> 16 == _TLS_SIZE:
            text = "the peer speaks TLS: enable TLS on this side too"
        super().__init__(text)
        self.size = size
        self.limit = limit


class MalformedFrameError(ProtocolError):
    """A frame's sizes contradict each other."""


class MalformedHeaderError(ProtocolError):
    """A header does not match its serialization type, or a field has an invalid value."""


class MalformedBodyError(ProtocolError):
    """A request or response body does not parse."""


class MalformedMessageError(ProtocolError):
    """A stored or sent message record does not parse."""


class Http2Error(ProtocolError):
    """The peer violates HTTP/2, so that the connection must be closed.

    Attributes:
        code: error code of the GOAWAY frame; see `kourou.http2.frames.ErrorCode`.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Http2StreamError(ProtocolError):
    """The peer violates HTTP/2 in one stream, which is reset; the connection stays open.

    Attributes:
        stream_id: the stream.
        code: error code of the RST_STREAM frame; see `kourou.http2.frames.ErrorCode`.
    """

    def __init__(self, stream_id: int, code: int) -> None:
        super().__init__(f"stream {stream_id}: error {code}")
        self.stream_id = stream_id
        self.code = code


class GrpcError(KourouError):
    """A gRPC call ends with a status other than OK.

    Attributes:
        status: the status code; see `kourou.http2.grpc_messages.GrpcStatus`.
        text: the message that the client receives.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class TransportError(KourouError):
    """The network failed before a response arrived."""

    retriable = True


class ConnectFailedError(TransportError):
    """No connection to the address could be established."""

    refresh_route = True


class NoLeaderError(ConnectFailedError):
    """None of the controllers leads, or none of them answers."""


class ConnectionLostError(TransportError):
    """The connection closed before the response arrived; the request may have been executed."""

    refresh_route = True


class RequestTimeoutError(TransportError, TimeoutError):
    """No response arrived in time; the request may have been executed."""

    suspects_route = True


class WaitEndedError(RequestTimeoutError):
    """A command has waited in vain for servers to reach a state; no single request was late."""


class ReplyTimeoutError(RequestTimeoutError):
    """A request message was stored, but no reply arrived in time.

    A consumer may still process it.
    """

    retriable = False


class TooManyRequestsError(TransportError):
    """The client's limit on requests in flight was reached."""


class NoRouteError(TransportError):
    """No name server has a route for the topic."""

    refresh_route = True


class RemoteError(KourouError):
    """The peer answered with a response code other than SUCCESS.

    A subclass declares its code in the class statement:

        class TopicNotFoundError(RemoteError, code=17): ...

    A code that is declared twice raises TypeError at import.
    """

    _by_code: ClassVar[dict[int, type[RemoteError]]] = {}
    code: int

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        super().__init_subclass__()
        if code is None:
            return
        if code in RemoteError._by_code:
            raise TypeError(f"code {code} is already {RemoteError._by_code[code].__name__}")
        RemoteError._by_code[code] = cls

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code
        self.remark = remark

    @staticmethod
    def from_response(code: int, remark: str | None) -> RemoteError:
        """Return the error for a response; a plain RemoteError if its code has no class."""
        text = remark or ""
        # RocketMQ 4 sends ACL_EXCEPTION with code 1.
        if code == _NO_PERMISSION or ACL_EXCEPTION in text:
            is_authenticated = not (_UNSIGNED.search(text) or _REJECTED.search(text))
            return (NoPermissionError if is_authenticated else AuthenticationError)(code, text)
        return RemoteError._by_code.get(code, RemoteError)(code, text)


class RemoteSystemError(RemoteError, code=1):
    """The peer failed while it executed the request (SYSTEM_ERROR)."""

    retriable = True


class SystemBusyError(RemoteError, code=2):
    """The peer is overloaded, or is a slave, and rejected the request (SYSTEM_BUSY)."""

    retriable = True
    suspects_route = True


class RequestNotSupportedError(RemoteError, code=3):
    """The peer does not implement the request code (REQUEST_CODE_NOT_SUPPORTED)."""


class FlushDiskTimeoutError(RemoteError, code=10):
    """The message is in the broker's memory, but its sync timed out (FLUSH_DISK_TIMEOUT)."""

    retriable = True


class MessageIllegalError(RemoteError, code=13):
    """The broker refused the message because of its contents (MESSAGE_ILLEGAL)."""


class ServiceNotAvailableError(RemoteError, code=14):
    """The broker accepts no writes: its disk is full, a sync failed, or it is shutting down.

    A master does so, too, when no controller confirms it.
    """

    retriable = True
    suspects_route = True


class NoPermissionError(RemoteError, code=16):
    """The topic, the group or the broker does not permit the operation (NO_PERMISSION)."""

    refresh_route = True


class AuthenticationError(NoPermissionError):
    """The cluster requires signed requests, or rejects the credentials of this client."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        if _UNSIGNED.search(remark):
            remedy = (
                "the cluster requires signed requests: pass "
                "credentials=Credentials(access_key, secret_key) to the client"
            )
        else:
            remedy = (
                "correct the access key and the secret key, or have the user created or enabled "
                "in the cluster"
            )
        self.args = (f"{self}: {remedy}",)


class TopicNotFoundError(RemoteError, code=17):
    """The peer does not know the topic (TOPIC_NOT_EXIST)."""

    refresh_route = True


class QueryNotFoundError(RemoteError, code=22):
    """The queried offset, key or message does not exist (QUERY_NOT_FOUND)."""


class SubscriptionParseError(RemoteError, code=23):
    """The broker could not parse the subscription (SUBSCRIPTION_PARSE_FAILED)."""


class SubscriptionNotFoundError(RemoteError, code=24):
    """The broker has not received the group's subscription yet (SUBSCRIPTION_NOT_EXIST).

    The next heartbeat registers it.
    """

    retriable = True


class SubscriptionNotLatestError(RemoteError, code=25):
    """The broker has an older version of the subscription (SUBSCRIPTION_NOT_LATEST).

    The next heartbeat updates it.
    """

    retriable = True


class FilterNotFoundError(RemoteError, code=27):
    """The broker has no filter of the group for the topic (FILTER_DATA_NOT_EXIST).

    Either the broker could not parse the expression, or it has not received it yet; in the latter
    case the next heartbeat registers it.
    """

    retriable = True


class FilterNotLatestError(RemoteError, code=28):
    """The broker has an older version of the filter (FILTER_DATA_NOT_LATEST).

    The next heartbeat updates it.
    """

    retriable = True


class GroupNotFoundError(RemoteError, code=26):
    """The broker does not know the group (SUBSCRIPTION_GROUP_NOT_EXIST)."""


class InvalidParameterError(RemoteError, code=29):
    """A name, a queue id or a limit is out of range (INVALID_PARAMETER)."""


class IllegalOperationError(RemoteError, code=604):
    """A recall or the end of a transaction is refused (ILLEGAL_OPERATION).

    A recall is refused if the handle is invalid or names another topic or broker, or if the message
    is already due. The end of a transaction is refused once the half message's own immunity time is
    over: the producer must then wait for the broker's check.
    """


class ConsumerNotOnlineError(RemoteError, code=206):
    """No consumer of the group is connected (CONSUMER_NOT_ONLINE)."""


class ConsumeTimeoutError(RemoteError, code=207):
    """A consumer did not answer a relayed request in time (CONSUME_MSG_TIMEOUT).

    The broker relayed the request to the consumer, which may have executed it.
    """


class FlowControlError(RemoteError, code=215):
    """The broker applies flow control; retry a little later (FLOW_CONTROL)."""

    retriable = True


class GoAwayError(RemoteError, code=1500):
    """The server is shutting down (GO_AWAY)."""

    retriable = True
    refresh_route = True


class StoreError(KourouError):
    """A file of the store cannot be read or written."""


class TopicRefusedError(StoreError):
    """The store accepts no messages for a topic that is being deleted or whose deletion failed."""


class CorruptRecordError(StoreError):
    """Bytes in a store file differ from what was written.

    Attributes:
        file: path of the file, relative to the store's root.
        offset: byte in that file at which the corrupt record begins.
        reason: the failed check.
    """

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file} at byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class DamagedRecordError(CorruptRecordError):
    """A message of a queue cannot be read: its record is corrupt, and the log holds no other copy.

    Attributes:
        topic, queue_id, queue_offset: the message's position.
    """

    def __init__(
        self, file: str, offset: int, reason: str, *, topic: str, queue_id: int, queue_offset: int
    ) -> None:
        where = f"message {queue_offset} of queue {queue_id} of topic {topic}"
        super().__init__(file, offset, f"{where} is damaged: {reason}")
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset


class StoreConfigError(StoreError):
    """The store was created with sizes other than the configured ones."""


class StoreUnusableError(StoreError):
    """The store's directory cannot be created, read or written.

    Attributes:
        path: the store's root.
        reason: the operating system's error text.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"store {path}: {reason}")
        self.path = path
        self.reason = reason


class StoreLockedError(StoreError):
    """Another process, or another store in this process, has the directory open."""


class StoreFullError(StoreError):
    """The store's file system has too little free space for writes.

    Attributes:
        free_bytes: bytes that were free.
        needed_bytes: bytes that must be free before writes are accepted.
        path: the store's root.
    """

    def __init__(self, path: str, free_bytes: int, needed_bytes: int) -> None:
        super().__init__(
            f"{path} has {free_bytes} bytes free, writes need {needed_bytes}: "
            "make room, or move the store; reads still work"
        )
        self.path = path
        self.free_bytes = free_bytes
        self.needed_bytes = needed_bytes


class StoreReadOnlyError(StoreError):
    """A sync or a write failed; the store accepts no writes until it is reopened."""


class ChangeNotCopiedError(StoreError, OSError):
    """A change of topics or groups is saved here, and not known to be on the in-sync replicas."""


class DataLossError(StoreError):
    """Messages requested by offset are not, or no longer, in their queue."""


class ReplicationRefusedError(KourouError):
    """A master and a slave cannot replicate, because their logs do not match."""


class EpochError(KourouError):
    """Epochs of a log do not increase, or are out of range."""


class ControllerStateError(StoreError):
    """The state of a controller is damaged, or is not the one that it had before."""


class NotLeadingError(RemoteError, code=2007):
    """The controller does not lead, or no longer: ask the leading one (CONTROLLER_NOT_LEADER)."""

    retriable = True


class EtcdError(KourouError):
    """etcd refused a request, or did not answer it; then it may have been served."""


class WriteInDoubtError(KourouError):
    """A controller cannot tell whether its decision was stored."""


class InternalError(KourouError):
    """A bug in Kourou; please report it with the error text and the traceback."""
