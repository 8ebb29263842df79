"""The address by which clients know the broker, as it stands in answers to administrators."""

from __future__ import annotations

from kourou.broker.config import BrokerConfig
from kourou.remoting.network import Address, format_address, parse_address


def advertised_address(config: BrokerConfig, local_address: Address) -> str:
    """Return `host:port`: what is configured, or else where the asking client found the broker."""
    if config.advertise is None:
        return format_address(local_address)
    return format_address(parse_address(config.advertise, local_address[1]))
