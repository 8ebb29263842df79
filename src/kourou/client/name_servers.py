"""The name servers of one client: one is used until it fails, then the next."""

from __future__ import annotations

import asyncio
import logging
import random

from kourou.client.namesrv_addr import NAMESRV_PORT, NamesrvLookup
from kourou.errors import ConnectFailedError, RequestNotSupportedError, TransportError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.remoting.check import raise_for_response
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)


class NameServers:
    """The name servers of one client, with failover.

    All of them know the same, so any may be asked; the first is chosen by chance, to spread load.

    Args:
        pool: the client's connections.
        addresses: where they are; with `lookup`, none are known at first.
        rng: chooses the first.
        lookup: tells where they are; None: `addresses` never change.

    Attributes:
        addresses: those known now.
        failure: why the last request got no answer; None if it got one.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        addresses: tuple[str, ...],
        rng: random.Random,
        lookup: NamesrvLookup | None = None,
    ) -> None:
        self.addresses = addresses
        self.failure: str | None = None
        self._pool = pool
        self._random = rng
        self._lookup = lookup
        self._looking_up: asyncio.Task[None] | None = None
        self._current = rng.randrange(len(addresses)) if addresses else 0

    @property
    def text(self) -> str:
        """The addresses, for error texts; the web address until it has told some."""
        if not self.addresses and self._lookup is not None:
            return self._lookup.url
        return ";".join(self.addresses)

    async def all(self) -> tuple[str, ...]:
        """Return the addresses, looked up if none are known yet.

        Raises:
            ConnectFailedError: the web address does not tell them.
        """
        if not self.addresses:
            await self.refresh()
        return self.addresses

    async def refresh(self) -> None:
        """Ask the web address, if there is one; concurrent callers share one look-up.

        Cancelling one of them does not end it.

        Raises:
            ConnectFailedError: it does not tell them; those known before are kept.
        """
        if self._lookup is None:
            return
        task = self._looking_up
        if task is None:
            task = asyncio.create_task(self._look_up(self._lookup), name="name servers by HTTP")
            self._looking_up = task
            task.add_done_callback(self._end_lookup)
        await asyncio.wait({task})
        if task.cancelled():
            raise ConnectFailedError("the client closed while it looked up the name servers")
        task.result()

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Return the first answer that is a success.

        Raises:
            ConnectFailedError: none answered within `timeout_s`; the text names them all.
            RequestNotSupportedError: what answered is a broker, or an older name server.
            RemoteError: one answered with another code.
        """
        try:
            answer = await self._ask(command, timeout_s)
        except ConnectFailedError as error:
            self.failure = str(error)
            raise
        self.failure = None
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestNotSupportedError(
                answer.code,
                f"{self.addresses[self._current]} is no name server, or an older one: "
                f"{(answer.remark or '').strip()}. A broker answers like this; give the address of "
                f"a name server, by default port {NAMESRV_PORT}",
            )
        raise_for_response(answer)
        return answer

    def close(self) -> None:
        """End the look-up under way."""
        if self._looking_up is not None:
            self._looking_up.cancel()

    async def _ask(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Return the first answer of any."""
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + timeout_s
        addresses = await self.all()
        failures = []
        first, count = self._current, len(addresses)
        for tried in range(count):
            # Counted from here: requests that fail together would push `_current` past who lives.
            index = (first + tried) % count
            # A silent one must leave time for the others.
            share_s = max(0.0, ends_at_s - loop.time()) / (count - tried)
            try:
                answer = await self._pool.request(addresses[index], command, share_s)
            except TransportError as error:
                failures.append(error)
            else:
                self._current = index
                return answer
        raise ConnectFailedError(
            f"no name server answered ({'; '.join(map(str, failures))}): start one (kourou serve), "
            f"or correct the address {self.text}"
        ) from (failures[-1] if failures else None)

    async def _look_up(self, lookup: NamesrvLookup) -> None:
        addresses = await lookup.addresses()
        if addresses != self.addresses:
            log.info("namesrv.changed url=%s addresses=%s", lookup.url, ";".join(addresses))
            self.addresses = addresses
            self._current = self._random.randrange(len(addresses))

    def _end_lookup(self, task: asyncio.Task[None]) -> None:
        self._looking_up = None
        if not task.cancelled():
            task.exception()  # all who waited may have been cancelled: then nobody else looks
