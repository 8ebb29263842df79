"""Networks of addresses, by which options select peers."""

from __future__ import annotations

from collections.abc import Iterable

from kourou.errors import ConfigError


class Networks:
    """Addresses and networks, as an option lists them."""

    def __init__(self, option: str, texts: Iterable[str]) -> None:
        """Parse the texts, such as `10.0.0.7`, `10.0.0.0/24` or `fd00::/8`.

        Raises:
            ConfigError: a text is neither an address nor a network; names the option.
        """
        import ipaddress  # noqa: PLC0415 - takes milliseconds, and most processes do not need it

        try:
            self._networks = [ipaddress.ip_network(text, strict=False) for text in texts]
        except ValueError as error:
            raise ConfigError(f"{option}: {error}") from None
        self._parse = ipaddress.ip_address

    def contain(self, host: str) -> bool:
        """Return whether one of them contains the address; an IPv4 one may be mapped to IPv6."""
        address = self._parse(host.partition("%")[0])  # link-local: the interface follows the %
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in network for network in self._networks)
