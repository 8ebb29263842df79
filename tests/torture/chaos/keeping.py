"""Keeps the store and the ledger of a run with failures, for `kourou store` and for a person."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.torture.chaos.ledger import Ledger
from tests.torture.chaos.pop_ledger import Delivery, PopEvent, encode_event

_LEFT_OUT: Final = shutil.ignore_patterns("journals")


def keep(target: Path, directory: Path, ledger: Ledger) -> Path:
    """Copy the files of a run to `target`, a new directory; return it.

    `failures.txt` has the failures, `broker.txt` the kills and changes of the broker's clock in
    epoch ms, and `pops-GROUP.txt` the deliveries by message, each with the requests about it.
    """
    shutil.copytree(directory, target, ignore=_LEFT_OUT)
    _write(target / "failures.txt", (f"{figure}: {text}" for figure, text in ledger.failures))
    kills = ((first, f"{first} killed, ended at {last}") for first, last in ledger.kills)
    changes = ((at_ms, f"{at_ms} clock ahead by {ahead_ms}") for at_ms, ahead_ms in ledger.clock)
    _write(target / "broker.txt", (text for _, text in sorted([*kills, *changes])))
    for group, pops in ledger.pops.items():
        every = (one for of_key in pops.deliveries.values() for one in of_key)
        _write(target / f"pops-{group}.txt", map(_text, every))
    return target


def _text(delivery: Delivery) -> str:
    events: list[PopEvent] = [delivery.popped]
    for step in delivery.steps:
        events += (step.begun, *((step.answered,) if step.answered else ()))
    return b" ".join(map(encode_event, events)).decode()


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))
