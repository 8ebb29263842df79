"""Findings of `kourou doctor`: one line each, with a remedy for each problem."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"
    """Works, with a restriction."""
    WRONG = "wrong"
    """Does not work, or not as documented."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        state: the severity.
        check: the checked object, in a word or two.
        detail: the observation.
        remedy: the action to take; empty if there is no problem.
    """

    state: State
    check: str
    detail: str
    remedy: str = ""
