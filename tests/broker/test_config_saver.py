"""A table is saved by one write at a time, and encoding its text does not block other tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from kourou.broker.config_saver import ConfigSaver


class SlowFile:
    """A file whose first save blocks until `go_on` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.saved: list[bytes] = []

    def load(self) -> bytes | None:
        return None

    def save(self, data: bytes) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.go_on.wait(30)
        self.saved.append(data)


def test_a_write_waits_for_the_write_of_a_cancelled_save() -> None:
    async def main() -> None:
        file = SlowFile()
        texts = iter([b"old", b"new"])
        saver = ConfigSaver(file, lambda: (next(texts),), asyncio.to_thread)
        saver.changed()
        given_up = asyncio.create_task(saver.save())
        await asyncio.to_thread(file.begun.wait, 30)
        given_up.cancel()
        await asyncio.wait([given_up])

        saver.changed()
        last = asyncio.create_task(saver.save())
        await asyncio.wait([last], timeout=0.02)
        assert file.saved == []
        file.go_on.set()
        assert await last
        assert file.saved == [b"old", b"new"]

    asyncio.run(main())


class Table:
    """A table of ten parts."""

    def __init__(self) -> None:
        self.value = 0

    def encode(self) -> Iterator[bytes]:
        for _ in range(10):
            yield b"%d" % self.value


def test_other_tasks_run_between_the_parts_and_their_changes_are_saved() -> None:
    async def main() -> None:
        file, table = SlowFile(), Table()
        file.go_on.set()
        saver = ConfigSaver(file, table.encode, asyncio.to_thread)
        saver.changed()
        saving = asyncio.create_task(saver.save())
        while table.value < 5:
            await asyncio.sleep(0)
            table.value += 1
            saver.changed()

        assert not await saving
        assert file.saved[0][:1] == b"0"
        assert b"0" < file.saved[0][-1:] <= b"5"
        assert await saver.save()
        assert file.saved[1:] == [b"5" * 10]

    asyncio.run(main())


def test_a_table_whose_snapshot_was_cancelled_is_still_marked_as_changed() -> None:
    async def main() -> None:
        file, table = SlowFile(), Table()
        file.go_on.set()
        saver = ConfigSaver(file, table.encode, asyncio.to_thread)
        saver.changed()
        given_up = asyncio.create_task(saver.save())
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert file.saved == []

        assert await saver.save()
        assert file.saved == [b"0" * 10]

    asyncio.run(main())


class Log:
    """A log that is being written and synced."""

    written_position = synced_position = 10


def test_records_written_during_the_encoding_must_be_synced_before_the_save() -> None:
    async def main() -> None:
        log, file, table = Log(), SlowFile(), Table()
        file.go_on.set()
        saver = ConfigSaver(file, table.encode, asyncio.to_thread, log)
        saver.changed()
        saving = asyncio.create_task(saver.save())
        await asyncio.sleep(0)
        log.written_position, table.value = 20, 1

        assert not await saving
        assert file.saved == []
        log.synced_position = 20
        assert await saver.save()
        assert file.saved[0].endswith(b"1")

    asyncio.run(main())
