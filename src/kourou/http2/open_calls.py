"""The open calls of a connection: their events, and what the server holds for them until they end.

An error of a call, or of the method that serves it, ends that call only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kourou.errors import GrpcError
from kourou.http2.calls import Call, CallConnection, Method
from kourou.http2.connection import Http2Connection
from kourou.http2.deadlines import Deadlines
from kourou.http2.grpc_messages import GrpcStatus
from kourou.http2.headers import RequestHead

log = logging.getLogger(__name__)


class SharedCalls:
    """State that the open calls of all connections of one server share.

    Attributes:
        methods: by path, such as b"/package.Service/Method".
        open_bytes: bytes of the fields of all open calls.
        open_bytes_max: their limit.
        deadlines: of the open calls.
        make_room: called if a new call does not fit; see `CallsOfConnection.has_room`.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        open_bytes_max: int,
        make_room: Callable[[OpenCalls], bool],
    ) -> None:
        """Start without calls. Called on the event loop.

        Args:
            methods: by path, such as "/package.Service/Method".
            open_bytes_max: see the attribute.
            make_room: see the attribute.
        """
        self.methods = {path.encode(): method for path, method in methods.items()}
        self.open_bytes = 0
        self.deadlines = Deadlines(asyncio.get_running_loop(), _end_by_deadline)
        self.open_bytes_max = open_bytes_max
        self.make_room = make_room


class OpenCalls:
    """The calls of one connection; see `StreamHandler` and `CallsOfConnection`.

    Attributes:
        http2: the connection's protocol; set before the first event.
        open_bytes: bytes of the fields of the open calls.
        begun: number of calls since the connection's begin.
    """

    http2: Http2Connection

    def __init__(self, shared: SharedCalls, connection: CallConnection) -> None:
        self._shared = shared
        self._connection = connection
        self.open_bytes = 0
        self.begun = 0

    def has_room(self) -> bool:
        """See `CallsOfConnection`."""
        shared = self._shared
        return shared.open_bytes <= shared.open_bytes_max or shared.make_room(self)

    # Events of streams

    def create_stream(self, stream_id: int, send_window: int, receive_window: int) -> Call:
        """See `StreamHandler`."""
        return Call(self._connection, self, stream_id, send_window, receive_window)

    def on_request(self, stream: Call, head: RequestHead) -> None:
        """See `StreamHandler`."""
        shared, size = self._shared, head.list_bytes
        self.begun += 1
        self.open_bytes += size
        shared.open_bytes += size
        try:
            stream.begin(head, shared.methods.get(head.path))
        except Exception as error:  # noqa: BLE001 - one call's failure must not end others
            self._failed(stream, error)
        if stream.deadline_s is not None and stream.is_active:
            shared.deadlines.add(stream, stream.deadline_s)

    def on_data(self, stream: Call, data: bytes) -> None:
        """See `StreamHandler`."""
        try:
            stream.receive(data)
        except Exception as error:  # noqa: BLE001 - as in `on_request`
            self._failed(stream, error)

    def on_reset(self, stream: Call) -> None:
        """See `StreamHandler`."""
        self._forget(stream)
        self._cancel(stream)

    def on_writable(self, stream: Call) -> None:
        """See `StreamHandler`."""
        if stream.on_writable is not None:
            try:
                stream.on_writable()
            except Exception as error:  # noqa: BLE001 - as in `on_request`
                self._failed(stream, error)

    # Ends of calls

    def on_answered(self, call: Call) -> None:
        """See `CallsOfConnection`."""
        self._forget(call)
        if not self._connection.is_flush_due:
            self._connection.flush_soon()
        if call.unsent is not None:
            self._connection.count_unread()

    def refuse(self, call: Call, error: GrpcError) -> None:
        """See `CallsOfConnection`."""
        self._cancel(call)
        call.finish(error.status, error.text)

    def end_by_deadline(self, call: Call) -> None:
        """See `CallsOfConnection`."""
        if call.is_active:
            self._cancel(call)
            call.finish(GrpcStatus.DEADLINE_EXCEEDED, f"not answered within {call.timeout_s:g} s")

    def _forget(self, call: Call) -> None:
        """Release what the server holds for a call that is over."""
        if call.is_forgotten:
            return
        call.is_forgotten = True
        if call.on_message is not None or call.on_writable is not None:
            call.on_message = call.on_end = call.on_writable = None  # they refer to the call
        shared, size = self._shared, call.head.list_bytes
        shared.open_bytes -= size
        self.open_bytes -= size
        if call.is_counted:
            call.forget()
        if call.deadline_s is not None:
            shared.deadlines.discard(call, call.deadline_s)
        if self.http2.is_draining and not self.http2.streams:
            self.http2.close()
            self._connection.flush_soon()

    def _failed(self, call: Call, error: Exception) -> None:
        """End a call whose data is refused or whose method has failed."""
        if isinstance(error, GrpcError):
            self.refuse(call, error)
            return
        path, peer = call.head.path.decode("ascii", "replace"), self._connection.remote_address
        log.error("call.failed path=%s peer=%s", path, peer, exc_info=error)
        self.refuse(call, GrpcError(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}"))

    def _cancel(self, call: Call) -> None:
        try:
            call.cancelled()
        except Exception:
            log.exception("call.cancel_failed peer=%s", self._connection.remote_address)


def _end_by_deadline(call: Call) -> None:
    call.calls.end_by_deadline(call)
