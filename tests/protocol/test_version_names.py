"""Version names equal those that Java's tools print."""

from __future__ import annotations

import pytest

from kourou.protocol.codes import VERSION, version_name, version_ordinal


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


@pytest.mark.parametrize(
    ("text", "ordinal"),
    [
        ("4.0.0", 213),
        ("5.0.8", 429),
        ("5.5.0", VERSION),
        ("5.9.9", 611),
        ("6.0.0", None),
        ("3.9.9", None),
        ("5.10.0", None),
        ("5.1", None),
        ("5.1.x", None),
        ("5.1.²", None),
        ("", None),
    ],
)
def test_version_of_an_sdk_has_the_ordinal_of_its_release(text: str, ordinal: int | None) -> None:
    assert version_ordinal(text) == ordinal
