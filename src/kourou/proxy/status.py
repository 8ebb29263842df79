"""Status codes of answers, and their derivation from errors and from brokers' response codes.

Almost every call ends with gRPC's status OK; its outcome is the `Status` in the answer.

Source: ResponseBuilder.java, GrpcProxyException.java, SendMessageActivity.java,
ClientActivity.java, apache/rocketmq 5.5.0, and recorded calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kourou.errors import (
    CallRefusedError,
    ConnectFailedError,
    FilterSyntaxError,
    GoAwayError,
    KourouError,
    NoRouteError,
    RemoteError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    SystemBusyError,
    TooManyRequestsError,
)
from kourou.protocol.codes import ResponseCode
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code

GRPC_INVALID_ARGUMENT: Final = 3
GRPC_INTERNAL: Final = 13

PROXY_EXCEPTION: Final = "org.apache.rocketmq.proxy.common.ProxyException: "
"""Prefix of the texts that clients know from RocketMQ's proxy for some refusals."""

_BY_RESPONSE: Final[dict[int, Code]] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}

_BY_SEND: Final[dict[int, tuple[Code, str]]] = {
    ResponseCode.FLUSH_DISK_TIMEOUT: (Code.MASTER_PERSISTENCE_TIMEOUT, "FLUSH_DISK_TIMEOUT"),
    ResponseCode.FLUSH_SLAVE_TIMEOUT: (Code.SLAVE_PERSISTENCE_TIMEOUT, "FLUSH_SLAVE_TIMEOUT"),
    ResponseCode.SLAVE_NOT_AVAILABLE: (Code.HA_NOT_AVAILABLE, "SLAVE_NOT_AVAILABLE"),
}
"""Status and name of the outcome, by the response code of a send that stored the message."""

_BY_ERROR: Final[tuple[tuple[type[Exception], Code], ...]] = (
    (NoRouteError, Code.TOPIC_NOT_FOUND),
    (RequestTimeoutError, Code.PROXY_TIMEOUT),
    (TooManyRequestsError, Code.TOO_MANY_REQUESTS),
    (FilterSyntaxError, Code.ILLEGAL_FILTER_EXPRESSION),
)
"""Status by class of an error that is no answer of a broker."""

_NOT_SERVED: Final = (ConnectFailedError, GoAwayError, NoRouteError, ServiceNotAvailableError)
_REJECTED: Final = "[REJECTREQUEST]"
"""Begin of the remark of a slave, of Kourou as of RocketMQ, that refuses what only masters do."""


def is_not_served(error: KourouError) -> bool:
    """Return whether a broker did nothing, and another one, or its next master, can serve."""
    if isinstance(error, SystemBusyError):
        return error.remark.startswith(_REJECTED)
    return isinstance(error, _NOT_SERVED)


def status(code: int, text: str | None = None) -> v2.Status:
    """Return a status; its text is the name of the code unless one is given."""
    return v2.Status(code=code, message=code_name(code) if text is None else text)


def ok() -> v2.Status:
    """Return the status OK."""
    return v2.Status(code=Code.OK, message="OK")


def code_name(code: int) -> str:
    """Return the name of a code; its number if it has none."""
    try:
        return Code(code).name
    except ValueError:
        return str(code)


def proxy_refusal(code: Code, text: str) -> CallRefusedError:
    """Return the error of a refusal whose text has `PROXY_EXCEPTION` before it in RocketMQ."""
    return CallRefusedError(code, f"{PROXY_EXCEPTION}{text}")


def code_of_response(code: int) -> Code:
    """Return the code for a broker's response code, of any call except a send's success."""
    return _BY_RESPONSE.get(code, Code.INTERNAL_SERVER_ERROR)


def response_status(code: int, remark: str | None) -> v2.Status:
    """Return the status for a broker's response; without a remark, its text is the number."""
    return status(code_of_response(code), str(int(code)) if remark is None else remark)


def send_status(code: int) -> v2.Status:
    """Return the status of one sent message, from the response code of its send."""
    if code == ResponseCode.SUCCESS:
        return ok()
    entry = _BY_SEND.get(code)
    if entry is None:
        return response_status(code, None)
    return status(entry[0], f"send message failed, sendStatus={entry[1]}")


def error_status(error: Exception) -> v2.Status:
    """Return the status for an error of a call.

    Errors that are not listed above become INTERNAL_SERVER_ERROR with their text.
    """
    if isinstance(error, CallRefusedError):
        return status(error.code, str(error))
    if isinstance(error, RemoteError):
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return status(Code.TOPIC_NOT_FOUND, f"CODE: 17  DESC: {error.remark}")
        return status(code_of_response(error.code), error.remark)
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return status(code, str(error))
    return status(Code.INTERNAL_SERVER_ERROR, str(error) or type(error).__name__)


def local_error_status(error: Exception) -> v2.Status:
    """Return the status for an error of a send or pop with the broker inside the proxy.

    Every refusal of the broker becomes INTERNAL_SERVER_ERROR, as with RocketMQ.
    """
    if isinstance(error, RemoteError):
        return status(Code.INTERNAL_SERVER_ERROR, f"{PROXY_EXCEPTION}{error.remark}")
    return error_status(error)


def broker_error_status(*, is_local: bool) -> Callable[[Exception], v2.Status]:
    """Return the function for errors of sends and pops, with the broker inside the proxy or not."""
    return local_error_status if is_local else error_status


def combined_status(codes: Iterable[int], empty_text: str) -> v2.Status:
    """Return the status of an answer with several entries.

    It is the code of all entries if they agree, else MULTIPLE_RESULTS.

    Args:
        codes: those of the entries.
        empty_text: text of INTERNAL_SERVER_ERROR if there are no entries.
    """
    distinct = set(codes)
    if not distinct:
        return status(Code.INTERNAL_SERVER_ERROR, empty_text)
    return status(distinct.pop() if len(distinct) == 1 else Code.MULTIPLE_RESULTS)


def telemetry_failure(error: Exception) -> tuple[int, str]:
    """Return the gRPC status and its text with which the stream of a client's settings ends."""
    failure = error_status(error)
    is_clients = Code.BAD_REQUEST <= failure.code < Code.INTERNAL_ERROR
    return (
        GRPC_INVALID_ARGUMENT if is_clients else GRPC_INTERNAL,
        f"process client telemetryCommand failed. {failure.message}",
    )
