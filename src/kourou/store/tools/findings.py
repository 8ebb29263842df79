"""Report of a store check: findings and counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """One violated invariant.

    Attributes:
        file: path of the file below the store's root.
        offset: byte offset in the file.
        problem: description for people.
    """

    file: str
    offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of a check.

    Attributes:
        findings: empty if all invariants hold.
        records: number of valid records in the commit log.
        queues: number of consume queues.
        bytes: size of the commit log up to the end of its last record.
        timers: number of scheduled messages in the timer wheel.
    """

    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    queues: int = 0
    bytes: int = 0
    timers: int = 0
