"""A member of a group whose mode changes: reports each message that its listener has finished.

python -m tests.torture.chaos.mode_member NAMESRV GROUP TOPIC NAME

After the first line, SIGTERM closes the member. Each other line has the key of a message, and `pop`
or `pull`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from random import Random
from typing import Final

import kourou
from kourou import ConsumeFromWhere, MessageExt, PushConsumer, PushConsumerConfig
from kourou.client.pop_result import PoppedMessage
from tests.torture.chaos.ledger import body_of, fails_once, key_of

INVISIBLE_MS: Final = 4_000
WORK_S_MAX: Final = 0.02
READY: Final = b"ready\n"


class RefusedError(Exception):
    """Raised by the listener on purpose."""


async def main(namesrv: str, group: str, topic: str, name: str) -> None:
    os.write(1, READY)
    config = PushConsumerConfig(
        client_rebalance=False,  # the broker says whether the group pops
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        instance_name=name,
        rebalance_interval_ms=500,
        heartbeat_interval_ms=1_000,
        persist_offset_interval_ms=500,
        pop_invisible_ms=INVISIBLE_MS,
        handover_ms=500,
    )
    consumer = PushConsumer(group, namesrv, config=config)
    consumer.subscribe(topic)
    dice = Random(name)

    @consumer.listen
    async def take(message: MessageExt) -> None:
        key = key_of(message.body)
        if message.body != body_of(key):
            raise AssertionError(f"{message.keys} has another body: {message.body[:50]!r}")
        await asyncio.sleep(dice.uniform(0, WORK_S_MAX))
        if fails_once(key) and message.reconsume_times == 0:
            raise RefusedError
        mode = "pop" if isinstance(message, PoppedMessage) else "pull"
        os.write(1, f"{key} {mode}\n".encode())  # one line, which a kill cannot divide

    async with consumer:
        await consumer.run_forever()


if __name__ == "__main__":
    kourou.run(main(*sys.argv[1:5]))
