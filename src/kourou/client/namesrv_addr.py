"""Addresses of name servers: given directly, or by a URL that returns them (`http://host/path`).

The response is one line, `host:port;host:port`. If name servers move, operators change the
response, and clients follow. The request blocks and therefore runs off the event loop.

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
"""Limit of the response; it has room for some thousand addresses."""


def namesrv_addr_of_environment() -> str:
    """Return the address from the environment, as the command line reads it; default: localhost."""
    for variable in NAMESRV_VARIABLES:
        if text := os.environ.get(variable, "").strip():
            return text
    return NAMESRV_DEFAULT


def as_url(text: str) -> str | None:
    """Return `text` if it is a URL, without surrounding blanks; else None.

    Raises:
        ConfigError: `text` is a URL without a host, or not a str.
    """
    if not isinstance(text, str):
        raise ConfigError(
            f"namesrv_addr is {text!r:.100}: expected a str, host:port or several joined by ';'"
        )
    text = text.strip()
    if not text.lower().startswith(_URL_SCHEMES):
        return None
    try:
        host = urlsplit(text).hostname
    except ValueError:
        host = None
    if not host:
        raise ConfigError(f"namesrv_addr {text!r} has no host: expected http://host:port/path")
    return text


def parse_namesrv_addr(text: str) -> tuple[str, ...]:
    """Return the addresses in `host:port;host:port`; the port is optional.

    Raises:
        ConfigError: the text is empty, or an address does not parse.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts:
        raise ConfigError("namesrv_addr is empty: expected host:port, or several joined by ';'")
    if "," in text:
        raise ConfigError(f"namesrv_addr {text!r}: addresses are separated by ';', not ','")
    return tuple(format_address(parse_address(part, NAMESRV_PORT)) for part in parts)


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
