"""A process that runs transactions until it is killed, with a journal of their progress.

python -m tests.torture.chaos.payer NAMESRV JOURNAL PREFIX
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import IO, Final

from kourou import SendAttempt, SendOutcome, TransactionProducer
from kourou.errors import KourouError
from tests.torture.chaos.ledger import MIXED, TRANSACTIONAL, message_of, truth
from tests.torture.chaos.senders import PATIENT, check

TASKS: Final = 4


class Tried:
    """Producer hook that writes each attempt to the journal before it is sent."""

    def __init__(self, lines: IO[str]) -> None:
        self._lines = lines

    def before_send(self, attempt: SendAttempt) -> None:
        self._lines.write(f"tried {attempt.messages[0].keys[0]}\n")

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Do nothing: `main` writes the outcome."""


async def main(namesrv: str, journal: Path, prefix: str) -> None:
    dice = Random(prefix)
    with journal.open("a", buffering=1) as lines:
        async with TransactionProducer(
            TRANSACTIONAL,
            namesrv,
            check=check,
            topics=[MIXED],
            config=PATIENT,
            hooks=[Tried(lines)],
        ) as producer:

            async def pay(task: int) -> None:
                for number in range(1_000_000):
                    key = f"{prefix}-{task}-{number}"
                    try:
                        transaction = await producer.begin_transaction(message_of(key))
                    except KourouError:
                        continue
                    lines.write(f"half {key}\n")
                    await asyncio.sleep(dice.uniform(0, 0.4))
                    await producer.end_transaction(transaction, truth(key))

            await asyncio.gather(*(pay(task) for task in range(TASKS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
