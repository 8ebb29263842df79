"""What a check of a store reports."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be.

    Attributes:
        file: its name below the store's root.
        offset: byte of the file where it shows.
        problem: what is wrong, for people.
    """

    file: str
    offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check read, and what it found.

    Attributes:
        findings: empty if the store is in order.
        records: whole records in the commit log.
        queues: consume queues.
        bytes: of the commit log, up to the end of its last record.
        timers: messages that wait for their time in the timer wheel.
    """

    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    queues: int = 0
    bytes: int = 0
    timers: int = 0
