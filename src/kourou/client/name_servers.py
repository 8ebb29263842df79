"""Name servers of a client: their addresses, and requests to one until it fails, then the next.

Addresses are given directly, or by a URL that returns them (`http://host/path`) in one line,
`host:port;host:port`. If name servers move, operators change the response, and clients follow. The
request blocks and therefore runs off the event loop.

Source: DefaultTopAddressing.java.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import random
import urllib.request
from typing import Final

from kourou.client.namesrv_addr import NAMESRV_PORT, parse_namesrv_addr
from kourou.errors import ConfigError, ConnectFailedError, RequestNotSupportedError, TransportError
from kourou.model.host import NAMESRV_DEFAULT, NAMESRV_VARIABLES
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, raise_for_response
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

_TEXT_BYTES_MAX: Final = 64 * 1024
"""Limit of the response; it has room for some thousand addresses."""


def namesrv_addr_of_environment() -> str:
    """Return the address from the environment, as the command line reads it; default: localhost."""
    for variable in NAMESRV_VARIABLES:
        if text := os.environ.get(variable, "").strip():
            return text
    return NAMESRV_DEFAULT


class NamesrvLookup:
    """Reads the addresses of name servers from a URL.

    Args:
        url: `http://` or `https://`.
        offload: runs a blocking function off the event loop.
        timeout_s: as in `fetch_text`.
    """

    def __init__(self, url: str, offload: Offload, timeout_s: float) -> None:
        self.url = url
        self._offload = offload
        self._timeout_s = timeout_s

    async def addresses(self) -> tuple[str, ...]:
        """Return the current addresses.

        Raises:
            ConnectFailedError: no response, or one without valid addresses; the text has the URL.
        """
        text = await self._offload(fetch_text, self.url, self._timeout_s)
        line = (text.splitlines() or [""])[0]
        try:
            return parse_namesrv_addr(line)
        except ConfigError as error:
            raise ConnectFailedError(f"{self.url} names no name servers: {error}") from None


def fetch_text(url: str, timeout_s: float) -> str:
    """Return the response body of a URL. Blocks; each read takes at most `timeout_s`.

    The environment variables `http_proxy` and `no_proxy` are respected.

    Raises:
        ConnectFailedError: no response, an error status, or a body that is too long or not text.
    """
    try:
        # Redirects lead to http, https or ftp only, and the caller has checked the scheme of `url`.
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310
            body: bytes = answer.read(_TEXT_BYTES_MAX + 1)
        if len(body) > _TEXT_BYTES_MAX:
            raise ConnectFailedError(f"{url} answered more than {_TEXT_BYTES_MAX} bytes")
        return body.decode()
    except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
        raise ConnectFailedError(f"{url} returned no name servers: {error}") from error


class NameServers:
    """The name servers of one client, with failover.

    All name servers have the same data, so any of them may be used. The first one is chosen at
    random, to spread the load.

    Args:
        pool: the client's connections.
        addresses: the initial addresses; empty with `lookup`.
        rng: chooses the first server.
        lookup: reads the addresses from a URL; None: `addresses` never change.

    Attributes:
        addresses: the current addresses.
        failure: the error text of the last request if no server answered it; else None.
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
        self._lookup_task: asyncio.Task[None] | None = None
        self._current = rng.randrange(len(addresses)) if addresses else 0

    @property
    def text(self) -> str:
        """The addresses for error texts; the URL before the first successful look-up."""
        if not self.addresses and self._lookup is not None:
            return self._lookup.url
        return ";".join(self.addresses)

    async def all(self) -> tuple[str, ...]:
        """Return the addresses; look them up if there are none yet.

        Raises:
            ConnectFailedError: the look-up failed.
        """
        if not self.addresses:
            await self.refresh()
        return self.addresses

    async def refresh(self) -> None:
        """Look up the addresses, if there is a URL; concurrent callers share one look-up.

        Cancelling a caller does not cancel the look-up.

        Raises:
            ConnectFailedError: the look-up failed; the previous addresses are kept.
        """
        if self._lookup is None:
            return
        task = self._lookup_task
        if task is None:
            task = asyncio.create_task(self._look_up(self._lookup), name="name servers by HTTP")
            self._lookup_task = task
            task.add_done_callback(self._end_lookup)
        await asyncio.wait({task})
        if task.cancelled():
            raise ConnectFailedError("the client closed while it looked up the name servers")
        task.result()

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request to the name servers in turn until one answers, and return its answer.

        Raises:
            ConnectFailedError: no server answered within `timeout_s`; the text names them all.
            RequestNotSupportedError: the server that answered is a broker or an older name server.
            RemoteError: a server answered with another error code.
        """
        try:
            answer = await self._request_any(command, timeout_s)
        except ConnectFailedError as error:
            self.failure = str(error)
            raise
        self.failure = None
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestNotSupportedError(
                answer.code,
                f"{self.addresses[self._current]} is no name server, or an older one: "
                f"{(answer.remark or '').strip()}. A broker answers like this; use the address of "
                f"a name server, by default port {NAMESRV_PORT}",
            )
        raise_for_response(answer)
        return answer

    def close(self) -> None:
        """Cancel a look-up in progress."""
        if self._lookup_task is not None:
            self._lookup_task.cancel()

    async def _request_any(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Return the first answer of any server, also an error."""
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + timeout_s
        addresses = await self.all()
        failures = []
        first, count = self._current, len(addresses)
        for tried in range(count):
            # Counted from `first`: if concurrent failures advanced `_current`, it could pass by a
            # server that works.
            index = (first + tried) % count
            # A server that does not answer must leave time for the others.
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
        self._lookup_task = None
        if not task.cancelled():
            # Marked as retrieved: if all callers were cancelled, none retrieves the exception.
            task.exception()
