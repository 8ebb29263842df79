"""One member of the push group: counts late departures as the flights arrive.

    count_delays.py NAME_SERVER LEDGER

Any number of members can run; the topic's queues are assigned to them. A member appends a line to
its ledger for each delivery (`ledger.py`), prints `{"ready": true}` when it listens, and ends on
SIGTERM.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, Final

import msgspec
from ledger import Entry

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.running import run
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import MessageExt

TOPIC: Final = "flights"
GROUP: Final = "flight-delays"
LATE_FROM_MINUTES: Final = 15
"""Delay from which on a flight officially counts as late."""


class Departure(msgspec.Struct):
    """The only field of a flight's message that is needed here."""

    dep_delay: int | None


class DelayCount:
    """Counts each late flight once, even if it is delivered several times."""

    def __init__(self, ledger: IO[bytes]) -> None:
        self._ledger = ledger
        self._decode = msgspec.json.Decoder(Departure).decode
        self._seen: set[str] = set()
        self._late = 0
        self._minutes = 0

    async def count(self, message: MessageExt) -> None:
        """Count one delivery; returning acknowledges the message."""
        [flight_id] = message.keys
        delay = self._decode(message.body).dep_delay or 0
        if delay >= LATE_FROM_MINUTES and flight_id not in self._seen:
            self._late += 1
            self._minutes += delay
        self._seen.add(flight_id)
        entry = Entry(flight_id, message.queue_id, message.queue_offset, self._late, self._minutes)
        self._ledger.write(entry.line())


async def main(name_server: str, ledger_file: Path) -> None:
    """Count until SIGTERM."""
    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer(GROUP, name_server, config=config)
    consumer.subscribe(TOPIC)
    # Unbuffered: a line is written before its message is acknowledged.
    with ledger_file.open("ab", buffering=0) as ledger:
        consumer.listen(DelayCount(ledger).count)
        async with consumer:
            print(json.dumps({"ready": True}), flush=True)
            await consumer.run_forever()


if __name__ == "__main__":
    run(main(sys.argv[1], Path(sys.argv[2])))
