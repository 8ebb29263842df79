"""The address by which clients know the broker, in routes and in answers to administrators."""

from __future__ import annotations

import ipaddress

from kourou.broker.config import BrokerConfig
from kourou.model.host import Host
from kourou.remoting.network import Address, format_address, parse_address


def advertised_address(config: BrokerConfig, found: Address) -> str:
    """Return `host:port`: the configured address, or else `found`, where the peer connected.

    The port is always the main one, even if the peer connected to the VIP port.
    """
    port = config.port or found[1]
    if config.advertise is None:
        return format_address((found[0], port))
    return format_address(parse_address(config.advertise, port))


def store_host(config: BrokerConfig) -> Host | None:
    """Return the address for message ids if `advertise` determines it; None otherwise."""
    if config.advertise is None:
        return None
    host, port = parse_address(config.advertise, config.port)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None  # a message id holds an IP address, not a host name
    return (host, port) if port else None
