"""Version names equal those that Java's tools print."""

from __future__ import annotations

import pytest

from kourou.protocol.codes import VERSION, version_name


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (121, "121"),
        (211, "211"),
        (212, "V4_0_0_SNAPSHOT"),
        (213, "V4_0_0"),
        (232, "V4_1_0_SNAPSHOT"),
        (401, "V4_9_4"),
        (409, "V4_9_8"),
        (411, "V4_9_9"),
        (412, "V5_0_0_SNAPSHOT"),
        (VERSION, "V5_5_0"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (10_000, "HIGHER_VERSION"),
    ],
)
def test_version_name_equals_javas(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name
