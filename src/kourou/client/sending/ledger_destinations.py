"""Destinations of a send ledger: a topic, and a directory of files with JSON lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.sending.ledger_entry import LedgerEntry, encode_entries
from kourou.client.sending.producer import Producer
from kourou.model.message import Message
from kourou.model.topic import check_topic
from kourou.remoting.runtime import Offload

BODY_BYTES_MAX: Final = 128_000
"""Size of a ledger message, well below the limit of any broker."""

TAG: Final = "ledger"
_GROUP: Final = "kourou_send_ledger"


class LedgerDestination(Protocol):
    """The destination of a ledger's entries."""

    async def open(self, client: ClientInstance) -> None:
        """Prepare for `write`; `client` is that of the producer."""

    async def write(self, entries: Sequence[LedgerEntry]) -> None:
        """Store the entries, in their order.

        Raises:
            KourouError, OSError: some or all are not stored; the caller writes them all again.
        """

    async def close(self) -> None:
        """Release connections and files."""


class LedgerTopic:
    """A topic, written by a producer of its own with the settings of the hooked one.

    The bodies are JSON lines. An entry that is written again after a lost answer is there twice.

    Args:
        topic: the topic; like any other it may be created by its first message.

    Raises:
        InvalidTopicError: the name is invalid.
    """

    def __init__(self, topic: str) -> None:
        check_topic(topic)
        self.topic = topic

    async def open(self, client: ClientInstance) -> None:
        config = client.config
        assert isinstance(config, ProducerConfig)
        self._producer = Producer(
            _GROUP,
            ";".join(client.namesrv_addresses),
            config=replace(config, instance_name=None, enable_trace=False, linger_ms=0),
            runtime=client.runtime,
        )
        await self._producer.start()

    async def write(self, entries: Sequence[LedgerEntry]) -> None:
        for body in encode_entries(entries, BODY_BYTES_MAX):
            await self._producer.send(Message(self.topic, body, tags=TAG, keys=[entries[0].run]))

    async def close(self) -> None:
        if hasattr(self, "_producer"):
            await self._producer.close()


class LedgerFiles:
    """A directory on this machine with a file of JSON lines for each producer.

    Lines are written to the operating system and not synced: they survive a kill of the process,
    but not a crash of the machine. After a failed write, entries may be in the file twice.

    Args:
        directory: created if it does not exist.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    async def open(self, client: ClientInstance) -> None:
        self._offload: Offload = client.runtime.offload

    async def write(self, entries: Sequence[LedgerEntry]) -> None:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", entries[0].run)
        await self._offload(self._append, self.directory / f"{name}.jsonl", entries)

    async def close(self) -> None:
        """Do nothing: no file stays open between two writes."""

    @staticmethod
    def _append(file: Path, entries: Sequence[LedgerEntry]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as opened:
            # An earlier write may have ended within a line.
            if opened.tell():
                opened.write(b"\n")
            for body in encode_entries(entries, BODY_BYTES_MAX):
                opened.write(body)
