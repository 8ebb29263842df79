"""The address by which clients know the broker, in routes and in answers to administrators."""

from __future__ import annotations

import ipaddress

from kourou.broker.config import BrokerConfig
from kourou.model.host import Host
from kourou.remoting.network import Address, format_address, parse_address


def advertised_address(config: BrokerConfig, found: Address) -> str:
    """Return `host:port`: what is configured, or else where the asker found the broker.

    The port is the main one, although the asker may have come by the VIP port.
    """
    port = config.port or found[1]
    if config.advertise is None:
        return format_address((found[0], port))
    return format_address(parse_address(config.advertise, port))


def store_host(config: BrokerConfig) -> Host | None:
    """Return the address in message ids, if it is known without asking a connection."""
    if config.advertise is None:
        return None
    host, port = parse_address(config.advertise, config.port)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None  # a message id holds an address, not a name
    return (host, port) if port else None
