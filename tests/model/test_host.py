"""Addresses are packed to 4 or 16 bytes and unpacked to the same text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import InvalidMessageError
from kourou.model.host import pack_address, unpack_address


@given(st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6, network="2001:db8::/32").map(str))
def test_packed_address_unpacks_to_the_same_text(text: str) -> None:
    assert unpack_address(pack_address(text)) == text


def test_ipv4_mapped_address_is_packed_as_ipv4() -> None:
    assert pack_address("::ffff:10.0.0.1") == bytes((10, 0, 0, 1))


def test_scope_is_not_packed() -> None:
    assert pack_address("fe80::1%eth0") == pack_address("fe80::1")


@pytest.mark.parametrize("text", ["localhost", "", "10.0.0", "10.0.0.256", "[::1]"])
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessageError, match="not an IP address"):
        pack_address(text)
