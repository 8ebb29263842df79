"""Options list addresses and networks, and name those that are neither."""

from __future__ import annotations

import pytest

from kourou.errors import ConfigError
from kourou.remoting.networks import Networks


def test_addresses_belong_to_the_networks_that_contain_them() -> None:
    networks = Networks("option", ["10.0.0.7", "192.168.0.0/16", "fd00::/8"])
    inside = ["10.0.0.7", "::ffff:10.0.0.7", "192.168.9.9", "fd00::1%eth0"]
    assert all(map(networks.contain, inside))
    assert not any(map(networks.contain, ["10.0.0.8", "::1", "192.169.0.1"]))


def test_a_text_that_is_no_network_is_refused_with_its_option() -> None:
    with pytest.raises(ConfigError, match="option: 'balancer' does not appear to be"):
        Networks("option", ["10.0.0.1", "balancer"])
