"""Text forms of the addresses of name servers: `host:port;host:port`, or a URL. Pure.

Apart from the requests, because programs that only check an address need not import a client.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from kourou.errors import ConfigError
from kourou.remoting.network import format_address, parse_address

NAMESRV_PORT: Final = 9876

_URL_SCHEMES: Final = ("http://", "https://")


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
