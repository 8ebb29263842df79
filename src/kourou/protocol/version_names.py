"""Names of RocketMQ versions, which requests and connections contain as ordinals.

Source: MQVersion.java. From 4.0.0 on, each minor version has ten releases, each preceded by a
snapshot.
"""

from __future__ import annotations

from typing import Final

_FIRST: Final = 212
"""The ordinal of V4_0_0_SNAPSHOT; earlier versions are not numbered regularly."""
_PER_MINOR: Final = 20
_PER_MAJOR: Final = 200
_HIGHER: Final = 612


def version_name(ordinal: int) -> str:
    """Return the name of a version, such as `V5_5_0`; before 4.0, the ordinal as text."""
    if ordinal < _FIRST:
        return str(ordinal)
    if ordinal >= _HIGHER:
        return "HIGHER_VERSION"
    major, remainder = divmod(ordinal - _FIRST, _PER_MAJOR)
    minor, remainder = divmod(remainder, _PER_MINOR)
    patch, is_release = divmod(remainder, 2)
    return f"V{4 + major}_{minor}_{patch}" + ("" if is_release else "_SNAPSHOT")
