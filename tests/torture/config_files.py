"""Config files truncated, zeroed, removed, overwritten, or swapped with their backups.

With one damaged file of a pair, the broker starts and serves every message, and its tables are
those of the newest good file; if that is the backup, a log entry names the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from tests.torture.damage_judge import (
    CRASHED,
    DAMAGE,
    LOST,
    REFUSED,
    TABLE,
    UNSAID,
    WRONG,
    judge_messages,
    judge_tables,
    observe,
    undamaged,
)
from tests.torture.figures import Figure, Outcome, Size, counted, run_cases
from tests.torture.filled import filled
from tests.torture.images import File, disk_of

FAULT: Final = "config file"
CUTS: Final = 20
SWAPPED: Final = "swapped with its backup"
GARBAGE: Final = b"\0garbage{" * 40


@dataclass(frozen=True)
class FileDamage:
    """One kind of damage to one file of one store."""

    is_closed: bool
    name: str
    what: str
    do: Callable[[dict[str, File]], object]

    def __str__(self) -> str:
        return f"{'closed' if self.is_closed else 'killed'}, {self.name} {self.what}"


def _image(*, is_closed: bool) -> Mapping[str, File]:
    return filled().closed if is_closed else filled().killed


def _damages_to(name: str, file: File) -> Iterator[tuple[str, Callable[[dict[str, File]], object]]]:
    """Yield the kinds of damage to a file: name and function."""

    def put(data: bytes) -> Callable[[dict[str, File]], object]:
        return lambda image: image.__setitem__(name, File(len(data), data))

    yield "removed", lambda image: image.pop(name)
    yield "overwritten with garbage", put(GARBAGE)
    yield "zeroed", lambda image: image.__setitem__(name, File(file.size, b""))
    for size in sorted({file.size * part // CUTS for part in range(CUTS)} | {file.size - 1}):
        yield f"cut to {size} of {file.size} bytes", put(file.data[:size])
    if not name.endswith(".bak"):
        yield (
            "swapped with its backup",
            lambda image: image.update({name: image[f"{name}.bak"], f"{name}.bak": image[name]}),
        )


@cache
def all_damages() -> tuple[FileDamage, ...]:
    """Return all damage, each to be done to a separate store."""
    return tuple(
        FileDamage(is_closed, name, what, do)
        for is_closed in (True, False)
        for name, file in _image(is_closed=is_closed).items()
        if name.startswith("config/") and name.removesuffix(".bak") + ".bak" in _image(
            is_closed=is_closed
        )
        for what, do in _damages_to(name, file)
    )  # fmt: skip


def run_damage(number: int) -> Outcome:
    """Return the outcome of one damage."""
    outcome, done = Outcome(), all_damages()[number]
    image = dict(_image(is_closed=done.is_closed))
    done.do(image)
    outcome.counts["files"] += 1
    try:
        seen = observe(disk_of(image))
    except Exception as error:  # noqa: BLE001 - a finding, whatever it is
        outcome.failures.append((CRASHED, f"{done}: {type(error).__name__}: {error}"))
        return outcome
    if seen.refusal:
        outcome.failures.append((REFUSED, f"{done}: {seen.refusal}"))
        return outcome
    found = [*judge_messages(seen, (), is_closed=done.is_closed, until_due=False)]
    found += judge_tables(seen, image, done.name)
    found += [(DAMAGE, text) for _, text in seen.findings]
    if done.what == SWAPPED and _differs_from_backup(done) and not seen.reports(done.name):
        found.append((UNSAID, "no log entry or answer names the file"))
    outcome.failures += [(name, f"{done}: {text}") for name, text in found]
    return outcome


def _differs_from_backup(done: FileDamage) -> bool:
    """Tell whether the tables of a broker with the backup differ."""
    backup = undamaged(done.name, is_closed=done.is_closed)
    return backup.tables != undamaged(is_closed=done.is_closed).tables


def run(size: Size, step: int = 1) -> list[Figure]:
    """Return the figures of all damage, or of every `step`-th."""
    outcome = run_cases(
        run_damage, range(0, len(all_damages()), step), replace(size, jobs=1), "config files"
    )
    names = (WRONG, LOST, TABLE, UNSAID, REFUSED, DAMAGE, CRASHED)
    return [counted(FAULT, name, outcome, "files") for name in names]
