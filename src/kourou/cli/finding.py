"""What `kourou doctor` finds: one line each, with a remedy where something is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    """Works, and may surprise."""
    WRONG = "wrong"
    """Will not work, or not as promised."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        state: how it is.
        check: what was looked at, in a word or two.
        detail: what was found.
        remedy: what to do; empty if all is well.
    """

    state: State
    check: str
    detail: str
    remedy: str = ""
