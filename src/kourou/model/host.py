"""Hosts of messages as (address text, port) pairs, and the packed form of addresses.

An address is IPv4 (4 bytes) or IPv6 (16 bytes); host names do not occur. An IPv4 address that a
dual-stack socket reports as IPv6 (`::ffff:10.0.0.1`) is packed as IPv4, as in Java.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

from kourou.errors import InvalidMessageError

Host = tuple[str, int]
"""Address text (IPv4 or IPv6, no brackets) and port."""

NAMESRV_DEFAULT: Final = "127.0.0.1:9876"
"""Name server of clients and commands that are given none."""

NAMESRV_VARIABLES: Final = ("KOUROU_NAMESRV", "NAMESRV_ADDR")
"""Environment variables that override `NAMESRV_DEFAULT`; the first one that is set is used. The
last one is RocketMQ's."""

# Both functions run once per message, for few distinct peers. The caches are bounded so that many
# distinct addresses (a scan) cost only the repeated computation, not memory.
_CACHED_ADDRESSES_MAX = 4096


@lru_cache(maxsize=_CACHED_ADDRESSES_MAX)
def pack_address(text: str) -> bytes:
    """Return the 4 or 16 bytes of an address.

    Raises:
        InvalidMessageError: the text is not an IP address.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise InvalidMessageError(f"{text!r} is not an IP address") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


@lru_cache(maxsize=_CACHED_ADDRESSES_MAX)
def unpack_address(packed: bytes) -> str:
    """Return the text of 4 (IPv4) or 16 (IPv6) address bytes."""
    return str(ipaddress.ip_address(packed))
