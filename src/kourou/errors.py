"""Every exception this package raises, and nothing else.

One module, one tree, by who is at fault:

    UsageError       the caller's mistake
    ProtocolError    the peer's bytes break the protocol: close the connection
    TransportError   the network failed: the same call may succeed later
    RemoteError      the peer answered, and not with SUCCESS
    StoreError       a file of the store cannot be read or written as it must
    InternalError    a bug of ours

The edges (broker reply, exit code of the command line) map from this tree.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

ACL_EXCEPTION: Final = "AclException"
"""Named in the remark of brokers of RocketMQ 4 where they refuse a request for who sends it."""

_NO_PERMISSION: Final = 16
_UNSIGNED: Final = re.compile(r"username cannot be null|no accesskey is configured", re.IGNORECASE)
_NOT_ACCEPTED: Final = re.compile(
    r"check signature failed|user:\S* (is )?(not found|disabled)|no acl config for"
    r"|authentication failed",
    re.IGNORECASE,
)
"""What brokers of RocketMQ 5 and 4 say of requests without a signature, and with a wrong one."""


class KourouError(Exception):
    """Base of every error raised by this package.

    Attributes:
        retriable: the same call may succeed later without any change.
        refresh_route: the caller's route data is stale; fetch it before retrying.
    """

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False


class UsageError(KourouError):
    """The caller asked for something that can never work."""


class ConfigError(UsageError, ValueError):
    """A configuration key is unknown, or a value is out of its range."""


class CredentialsError(ConfigError):
    """A client's credentials cannot be read or used, or the function that returns them failed."""


class InvalidMessageError(UsageError, ValueError):
    """A message breaks a limit or lacks what it must have."""


class InvalidTopicError(UsageError, ValueError):
    """A topic name is empty, too long, reserved or has a forbidden character."""


class InvalidGroupError(UsageError, ValueError):
    """A group name is empty, too long, reserved or already taken in this process."""


class FilterSyntaxError(UsageError, ValueError):
    """A subscription expression does not parse.

    Attributes:
        position: index of the first character that does not fit.
    """

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"{reason} (at character {position})")
        self.position = position


class FilterEvaluationError(UsageError, ValueError):
    """A filter expression has no result for a message, which so does not match."""


class ListenFailedError(UsageError):
    """A server could not open its port.

    Attributes:
        address: what it was asked to listen on, as `host:port`.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot listen on {address}: {reason}")
        self.address = address


class AddressInUseError(ListenFailedError):
    """Another process, or another server in this one, has the port."""

    def __init__(self, address: str) -> None:
        super().__init__(
            address, "the port is taken: stop the server that has it, or choose another port"
        )


class ClosedError(UsageError):
    """An operation on something that was closed or never started."""


class ForkedError(UsageError):
    """A client was used in a process forked from the one that made it."""


class CodecMissingError(UsageError):
    """A message body needs a codec whose package is not installed.

    Attributes:
        package: what is missing.
    """

    def __init__(self, package: str) -> None:
        super().__init__(f"a message body needs the package {package}: pip install 'kourou[fast]'")
        self.package = package


class PackageMissingError(UsageError):
    """What was asked for needs a package that is not installed.

    Attributes:
        package: what is missing.
        extra: of this package, which brings it.
    """

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs the package {package}: pip install 'kourou[{extra}]'")
        self.package = package
        self.extra = extra


class NotARequestError(UsageError):
    """A message cannot be replied to: its sender does not wait for a reply, by its properties."""


class DuplicateInProgressError(UsageError):
    """A message arrived again while its first delivery is being handled; it will come again."""


class JavaNotFoundError(UsageError):
    """Spark was asked for on a machine without a Java that it runs on."""


class ProtocolError(KourouError):
    """The peer sent bytes that break the protocol; the connection must be closed."""


_HTTP_SIZE: Final = 0x48545450
"""What the first bytes of `HTTP/1.1 400` would mean as the size of a frame."""
_TLS_SIZE: Final = 0x1503
"""What those of an alert of TLS would mean, without its lower two bytes."""


class FrameTooLargeError(ProtocolError):
    """A frame announced more bytes than we accept.

    Attributes:
        size: the announced size in bytes.
        limit: the largest size we accept, in bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        text = f"frame of {size} bytes exceeds the limit of {limit} bytes"
        if size == _HTTP_SIZE:
            text = "the peer speaks HTTP: it is a web server, or the port of /metrics"
        elif size >> 16 == _TLS_SIZE:
            text = "the peer speaks TLS: this side must, too"
        super().__init__(text)
        self.size = size
        self.limit = limit


class MalformedFrameError(ProtocolError):
    """A frame's sizes contradict each other."""


class MalformedHeaderError(ProtocolError):
    """A header is not what its serialization says, or a field has a bad value."""


class MalformedBodyError(ProtocolError):
    """A request or response body does not parse."""


class MalformedMessageError(ProtocolError):
    """A stored or sent message record does not parse."""


class TransportError(KourouError):
    """The network failed before an answer came."""

    retriable = True


class ConnectFailedError(TransportError):
    """No connection to the address could be made."""

    refresh_route = True


class ConnectionLostError(TransportError):
    """The connection closed while an answer was awaited; the request may have been served."""

    refresh_route = True


class RequestTimeoutError(TransportError, TimeoutError):
    """No answer came in time; the request may have been served."""


class ReplyTimeoutError(RequestTimeoutError):
    """A request was stored, but nobody replied to it in time; one may still serve it."""

    retriable = False


class TooManyRequestsError(TransportError):
    """A client-side limit on requests in flight was reached."""


class NoRouteError(TransportError):
    """No name server knows a broker that serves the topic."""

    refresh_route = True


class RemoteError(KourouError):
    """The peer answered with a response code other than SUCCESS.

    Subclasses name the code they stand for in the class statement, so a code
    with two classes is a bug found at import:

        class TopicNotFoundError(RemoteError, code=17): ...
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
        """Return the error for a response; a bare RemoteError if its code has no class."""
        text = remark or ""
        if code == _NO_PERMISSION or ACL_EXCEPTION in text:  # the latter with code 1
            is_known = not (_UNSIGNED.search(text) or _NOT_ACCEPTED.search(text))
            return (NoPermissionError if is_known else AuthenticationError)(code, text)
        return RemoteError._by_code.get(code, RemoteError)(code, text)


class RemoteSystemError(RemoteError, code=1):
    """The peer failed inside (SYSTEM_ERROR)."""

    retriable = True


class SystemBusyError(RemoteError, code=2):
    """The peer sheds load (SYSTEM_BUSY)."""

    retriable = True


class RequestNotSupportedError(RemoteError, code=3):
    """The peer does not know the request, or serves it not yet (REQUEST_CODE_NOT_SUPPORTED)."""


class FlushDiskTimeoutError(RemoteError, code=10):
    """Stored in memory; the sync did not end in time (FLUSH_DISK_TIMEOUT)."""

    retriable = True


class MessageIllegalError(RemoteError, code=13):
    """The broker refused the message for what it holds (MESSAGE_ILLEGAL)."""


class ServiceNotAvailableError(RemoteError, code=14):
    """The broker does not take writes: full disk, failed sync or shutdown."""

    retriable = True


class NoPermissionError(RemoteError, code=16):
    """The topic, the group or the broker does not allow it (NO_PERMISSION)."""

    refresh_route = True


class AuthenticationError(NoPermissionError):
    """The cluster wants signed requests, or does not accept the credentials of this client."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        if _UNSIGNED.search(remark):
            remedy = (
                "the cluster wants signed requests: give the client "
                "credentials=Credentials(access_key, secret_key)"
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
    """Nothing is stored under what was asked for (QUERY_NOT_FOUND)."""


class SubscriptionParseError(RemoteError, code=23):
    """The broker could not parse the subscription (SUBSCRIPTION_PARSE_FAILED)."""


class SubscriptionNotFoundError(RemoteError, code=24):
    """The group did not register this subscription by a heartbeat (SUBSCRIPTION_NOT_EXIST)."""

    retriable = True


class SubscriptionNotLatestError(RemoteError, code=25):
    """The broker holds an older subscription; the next heartbeat heals it."""

    retriable = True


class FilterNotFoundError(RemoteError, code=27):
    """The broker holds no filter of the group for the topic (FILTER_DATA_NOT_EXIST).

    Its expression does not parse there, or the next heartbeat heals it.
    """

    retriable = True


class FilterNotLatestError(RemoteError, code=28):
    """The broker holds an older filter; the next heartbeat heals it (FILTER_DATA_NOT_LATEST)."""

    retriable = True


class GroupNotFoundError(RemoteError, code=26):
    """The broker does not know the group (SUBSCRIPTION_GROUP_NOT_EXIST)."""


class InvalidParameterError(RemoteError, code=29):
    """A name, a queue id or a limit is out of range (INVALID_PARAMETER)."""


class IllegalOperationError(RemoteError, code=604):
    """It comes too late, or names another topic or broker (ILLEGAL_OPERATION).

    Of a recall: the message is delivered, or about to be. Of the end of a transaction: the broker
    asks about it.
    """


class ConsumerNotOnlineError(RemoteError, code=206):
    """No consumer of the group is connected (CONSUMER_NOT_ONLINE)."""


class ConsumeTimeoutError(RemoteError, code=207):
    """A consumer did not answer in time what it was asked for another (CONSUME_MSG_TIMEOUT).

    It may have done what it was asked.
    """


class FlowControlError(RemoteError, code=215):
    """The broker asks to come back a little later (FLOW_CONTROL)."""

    retriable = True


class GoAwayError(RemoteError, code=1500):
    """The server is shutting down (GO_AWAY)."""

    retriable = True
    refresh_route = True


class StoreError(KourouError):
    """A file of the store cannot be read or written as it must."""


class TopicRefusedError(StoreError):
    """The store takes no messages of one topic: it is being deleted, or its deletion failed."""


class CorruptRecordError(StoreError):
    """Bytes in a store file are not what was written.

    Attributes:
        file: name of the file below the store's root.
        offset: byte in that file where the bad record begins.
        reason: what does not fit.
    """

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file} at byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class DamagedRecordError(CorruptRecordError):
    """A message of a queue cannot be read: its record is damaged, and the log has no other.

    Attributes:
        topic, queue_id, queue_offset: which message.
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
    """The store was made with other sizes than it is asked to open with."""


class StoreUnusableError(StoreError):
    """The store's directory cannot be made, read or written.

    Attributes:
        path: the store's root.
        reason: the operating system's words.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"store {path}: {reason}")
        self.path = path
        self.reason = reason


class StoreLockedError(StoreError):
    """Another process, or another store in this one, has the directory open."""


class StoreFullError(StoreError):
    """Too little space is left on the file system of the store.

    Attributes:
        free_bytes: what was free.
        needed_bytes: what must be free for writes to be taken.
        path: the store's root.
    """

    def __init__(self, path: str, free_bytes: int, needed_bytes: int) -> None:
        super().__init__(
            f"{path} has {free_bytes} bytes free, writes need {needed_bytes}: "
            "make room, or move the store; reads go on"
        )
        self.path = path
        self.free_bytes = free_bytes
        self.needed_bytes = needed_bytes


class StoreReadOnlyError(StoreError):
    """A sync or a write failed, so the store takes no more writes until it is reopened."""


class DataLossError(StoreError):
    """Messages that were asked for by offset are not, or no longer, in their queue."""


class InternalError(KourouError):
    """A bug of ours; please report it with the text and the traceback."""
