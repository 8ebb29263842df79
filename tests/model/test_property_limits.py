"""Limits of the property text leave room for the properties that are added later."""

from __future__ import annotations

import pytest

from kourou.model.properties import PROPERTIES_SIZE_MAX, decode_properties, encode_properties
from kourou.model.property_limits import (
    ADDED_VALUE_BYTES_MAX,
    CHECKSUM_ROOM_BYTES,
    SENT_PROPERTIES_SIZE_MAX,
    encode_fitting_properties,
    exceeds_send_limit,
)
from kourou.protocol.record.layout import SEAL_BYTES


def test_reserved_room_fits_all_added_properties() -> None:
    added = encode_properties({name: "x" * most for name, most in ADDED_VALUE_BYTES_MAX.items()})
    assert SENT_PROPERTIES_SIZE_MAX + len(added) + CHECKSUM_ROOM_BYTES <= PROPERTIES_SIZE_MAX
    assert CHECKSUM_ROOM_BYTES == SEAL_BYTES + 1


def test_added_properties_of_usual_length_do_not_count() -> None:
    longest = {"k": "é" * 14_998, "a": "1", "REAL_TOPIC": "t" * 255, "UNIQ_KEY": "0" * 32}
    assert len(encode_properties({"k": longest["k"], "a": "1"})) == SENT_PROPERTIES_SIZE_MAX + 3
    assert exceeds_send_limit(longest)
    assert not exceeds_send_limit(longest | {"a": "", "k": "é" * 14_997})
    assert exceeds_send_limit(longest | {"k": "é" * 14_997, "REAL_TOPIC": "t" * 256})


@pytest.mark.parametrize("is_pending", [True, False])
def test_delivery_properties_are_omitted_only_as_needed(*, is_pending: bool) -> None:
    of_delivery = {"REAL_TOPIC": "T", "REAL_QID": "0", "CLUSTER": "c", "KOUROU_DLQ_REASON": "r"}

    def left(own_bytes: int) -> dict[str, str]:
        own = {"k": "v" * (own_bytes - 3)}
        text = encode_fitting_properties(own | of_delivery, is_pending=is_pending)
        found = decode_properties(text)
        assert found.pop("k") == own["k"]
        return found

    most = PROPERTIES_SIZE_MAX - CHECKSUM_ROOM_BYTES
    assert left(most - len(encode_properties(of_delivery))) == of_delivery
    without_reason = {name: of_delivery[name] for name in ("REAL_TOPIC", "REAL_QID", "CLUSTER")}
    assert left(most - len(encode_properties(of_delivery)) + 1) == without_reason
    essential = {"REAL_TOPIC": "T", "REAL_QID": "0"} if is_pending else {}
    assert left(most) == essential
    assert left(PROPERTIES_SIZE_MAX) == essential
