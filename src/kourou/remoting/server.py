"""A remoting server: accepts connections and dispatches their requests to handlers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kourou.remoting.admission import Admission
from kourou.remoting.connection import Connection, FastPath
from kourou.remoting.connections import Connections
from kourou.remoting.dispatch import Dispatcher, Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address, Listener, format_address
from kourou.remoting.runtime import Runtime

log = logging.getLogger(__name__)


class RemotingServer:
    """Serves one port. Created inside a running loop; started and stopped once.

    Args:
        runtime: provides the network and the timer.
        handlers: handlers by request code; all other codes are answered "not supported".
        limits: limits of its connections.
        name: the server's name in the log.
        on_connection_closed: called with each connection that has closed.
        admission: what may precede the first frame, such as TLS; None: nothing.
        fast_path: serves the frames that it recognizes, before `handlers`.
    """

    def __init__(
        self,
        runtime: Runtime,
        handlers: Mapping[int, Handler],
        limits: ConnectionLimits,
        name: str,
        on_connection_closed: Callable[[Connection], None] | None = None,
        *,
        admission: Admission | None = None,
        fast_path: FastPath | None = None,
    ) -> None:
        self._network = runtime.network
        self._name = name
        self._listener: Listener | None = None
        self._admission = admission
        self._dispatcher = Dispatcher(handlers)
        self.connections = Connections(
            self._dispatcher,
            limits,
            is_accepting=True,
            on_closed=on_connection_closed,
            fast_path=fast_path,
            timer=runtime.timer,
        )

    async def start(self, address: Address) -> Address:
        """Accept connections and return the address, with the port given when 0 was asked.

        Raises:
            AddressInUseError: another socket listens there already.
            ListenFailedError: the address is not this machine's, or is not permitted.
        """
        self._listener = await self._network.listen(
            address, self.connections.create, admission=self._admission
        )
        address = self._listener.address
        log.info("server.started name=%s address=%s", self._name, format_address(address))
        return address

    def go_away(self) -> None:
        """Stop accepting connections, and redirect clients to other servers.

        Later requests are answered GO_AWAY and not served, unless they are oneway or their sender
        is too old to know that code. Requests in progress are still answered.

        Source: NettyRemotingAbstract.processRequestCommand, isShuttingDown.
        """
        if self._listener is not None:
            self._listener.close()
        self._dispatcher.is_shutting_down = True
        self.connections.disable_fast_path()
        log.info("server.left name=%s connections=%d", self._name, len(self.connections))

    async def stop(self) -> None:
        """Stop accepting, let queued output leave within `drain_timeout_ms`, close connections.

        Requests that are unanswered now stay unanswered: answer those that matter before the call.
        """
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        await self.connections.close(f"{self._name} is stopping")
        log.info("server.stopped name=%s", self._name)

    def abort(self) -> None:
        """Stop accepting and abort all connections, as a killed process would."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.connections.abort(f"{self._name} was aborted")
