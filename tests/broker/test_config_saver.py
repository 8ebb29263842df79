"""A table is saved by one write at a time, whoever still waits for it."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from kourou.broker.config_saver import ConfigSaver


class SlowFile:
    """A file whose first save takes until `go_on` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.saved: list[bytes] = []

    def load(self) -> bytes | None:
        return None

    def save(self, data: bytes) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.go_on.wait(5)
        self.saved.append(data)


def test_a_write_that_nobody_waits_for_any_more_is_not_overtaken() -> None:
    async def main() -> None:
        file = SlowFile()
        texts = iter([b"old", b"new"])
        saver = ConfigSaver(file, lambda: partial(bytes, next(texts)), asyncio.to_thread)
        saver.changed()
        given_up = asyncio.create_task(saver.save())
        await asyncio.to_thread(file.begun.wait, 5)
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


def test_the_text_of_a_table_is_made_off_the_loop_and_is_of_when_it_was_taken() -> None:
    async def main() -> None:
        file, table, threads = SlowFile(), ["before"], []
        file.go_on.set()

        def encode(taken: str) -> bytes:
            threads.append(threading.current_thread())
            table[0] = "changed meanwhile"
            return taken.encode()

        saver = ConfigSaver(file, lambda: partial(encode, table[0]), asyncio.to_thread)
        saver.changed()
        assert await saver.save()
        assert file.saved == [b"before"]
        assert threading.main_thread() not in threads

    asyncio.run(main())
