"""Where name servers are, as users write it: addresses, or a web address that tells them."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from kourou.errors import ConfigError
from kourou.remoting.network import format_address, parse_address

NAMESRV_PORT: Final = 9876

_URL_SCHEMES: Final = ("http://", "https://")


def find_url(text: str) -> str | None:
    """Return the web address that `text` is; None if it is none.

    Raises:
        ConfigError: it begins as one, and names no host.
    """
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
    return tuple(format_address(parse_address(part, NAMESRV_PORT)) for part in parts)
