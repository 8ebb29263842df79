"""Addresses pack to 4 or 16 bytes and come back as the same text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import InvalidMessageError
from kourou.model.host import pack_address, unpack_address


@given(st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6, network="2001:db8::/32").map(str))
def test_an_address_survives_packing(text: str) -> None:
    assert unpack_address(pack_address(text)) == text


def test_an_ipv4_address_seen_through_an_ipv6_socket_packs_as_ipv4() -> None:
    assert pack_address("::ffff:10.0.0.1") == bytes((10, 0, 0, 1))


def test_a_scope_is_not_part_of_the_bytes() -> None:
    assert pack_address("fe80::1%eth0") == pack_address("fe80::1")


@pytest.mark.parametrize("text", ["localhost", "", "10.0.0", "10.0.0.256", "[::1]"])
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessageError, match="not an IP address"):
        pack_address(text)
