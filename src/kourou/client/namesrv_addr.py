"""Where name servers are: addresses, or a web address that tells them, as `http://host/path`.

What the web address answers is one line, `host:port;host:port`. Whoever moves name servers changes
it there, and clients follow. Reading it blocks, so it is done off the event loop.

Source: DefaultTopAddressing.java.
"""

from __future__ import annotations

import http.client
import os
import urllib.request
from typing import Final
from urllib.parse import urlsplit

from kourou.errors import ConfigError, ConnectFailedError
from kourou.model.host import NAMESRV_DEFAULT, NAMESRV_VARIABLES
from kourou.remoting.network import format_address, parse_address
from kourou.remoting.runtime import Offload

NAMESRV_PORT: Final = 9876

_URL_SCHEMES: Final = ("http://", "https://")

_TEXT_BYTES_MAX: Final = 64 * 1024
"""Some thousand addresses; what is longer is no list of name servers."""


def namesrv_addr_of_environment() -> str:
    """Return what the environment names, as the command line reads it; this machine otherwise."""
    for variable in NAMESRV_VARIABLES:
        if text := os.environ.get(variable, "").strip():
            return text
    return NAMESRV_DEFAULT


def find_url(text: str) -> str | None:
    """Return the web address that `text` is; None if it is none.

    Raises:
        ConfigError: it begins as one, and names no host; or it is no text.
    """
    if not isinstance(text, str):
        raise ConfigError(
            f"namesrv_addr is {text!r:.100}: expected one text, host:port, or several joined by ';'"
        )
    text = text.strip()
    if not text.lower().startswith(_URL_SCHEMES):
        return None
    try:
        host = urlsplit(text).hostname
    except ValueError:
        host = None
    if not host:
        raise ConfigError(f"namesrv_addr {text!r} names no host: expected http://host:port/path")
    return text


def parse_namesrv_addr(text: str) -> tuple[str, ...]:
    """Return the addresses of `host:port;host:port`; the port may be left out.

    Raises:
        ConfigError: there is none, or one does not parse.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts:
        raise ConfigError("namesrv_addr is empty: expected host:port, or several joined by ';'")
    if "," in text:
        raise ConfigError(f"namesrv_addr {text!r}: addresses are separated by ';', not ','")
    return tuple(format_address(parse_address(part, NAMESRV_PORT)) for part in parts)


class NamesrvLookup:
    """Asks a web address for the name servers.

    Args:
        url: `http://` or `https://`.
        offload: how to leave the loop.
        timeout_s: for one answer.
    """

    def __init__(self, url: str, offload: Offload, timeout_s: float) -> None:
        self.url = url
        self._offload = offload
        self._timeout_s = timeout_s

    async def addresses(self) -> tuple[str, ...]:
        """Return the addresses that are named now.

        Raises:
            ConnectFailedError: no answer, or one that names none; the text has the web address.
        """
        text = await self._offload(fetch_text, self.url, self._timeout_s)
        line = (text.splitlines() or [""])[0]
        try:
            return parse_namesrv_addr(line)
        except ConfigError as error:
            raise ConnectFailedError(f"{self.url} names no name servers: {error}") from None


def fetch_text(url: str, timeout_s: float) -> str:
    """Return what a web address answers. Blocks, each read at most `timeout_s`.

    Goes through the proxy that `http_proxy` names, unless `no_proxy` says otherwise.

    Raises:
        ConnectFailedError: no answer, a refusal, or one that is too long or no text.
    """
    try:
        # Redirects lead to http, https or ftp only, and the caller has checked the first address.
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310
            body: bytes = answer.read(_TEXT_BYTES_MAX + 1)
        if len(body) > _TEXT_BYTES_MAX:
            raise ConnectFailedError(f"{url} answered more than {_TEXT_BYTES_MAX} bytes")
        return body.decode()
    except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
        raise ConnectFailedError(f"{url} does not tell the name servers: {error}") from error
