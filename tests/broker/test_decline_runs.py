"""A connection whose frames a fast path keeps declining skips it, and returns to it."""

from __future__ import annotations

import asyncio
from collections import Counter

from kourou.broker.decline_runs import CUT_OFF, RUN, SKIPS, DeclineRuns
from kourou.protocol.frame import encode_frame
from kourou.testing.disk import SimDisk
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.loop import run_virtual
from kourou.testing.send_rig import SendRig, message, run_sends
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.sending.test_fast_batch import batch_frame

PLAIN = encode_frame(message())
DELAYED = encode_frame(message(properties="DELAY\x011\x02"))


def sent_by_turns(runs: DeclineRuns, frames: str, reason: str = "properties") -> str:
    """Return how each frame went: `s` skipped, `a` accepted, `d` declined; `d` in `frames` is."""
    connection, outcome = LoneConnection({}).connection, ""
    for frame in frames:
        if runs.skips(connection):
            outcome += "s"
            continue
        outcome += frame
        if frame == "d":
            runs.note(connection, reason)
    return outcome


def test_frames_skip_the_fast_path_after_a_run_and_one_is_tried_again() -> None:
    async def main() -> None:
        expected = "d" * RUN + "s" * SKIPS + "d" + "s" * SKIPS + "a" + "d" * RUN + "s"
        frames = "d" * (RUN + SKIPS + 1 + SKIPS) + "a" + "d" * RUN + "a"
        assert sent_by_turns(DeclineRuns(Counter()), frames) == expected

    run_virtual(main())


def test_an_accepted_frame_ends_a_run() -> None:
    async def main() -> None:
        frames = ("d" * (RUN - 1) + "a") * 10
        assert sent_by_turns(DeclineRuns(Counter()), frames) == frames

    run_virtual(main())


def test_reasons_that_pass_start_no_run() -> None:
    async def main() -> None:
        assert sent_by_turns(DeclineRuns(Counter()), "d" * 100, CUT_OFF) == "d" * 100

    run_virtual(main())


def test_a_closed_connection_is_forgotten() -> None:
    async def main() -> None:
        runs, lone = DeclineRuns(Counter()), LoneConnection({})
        runs.note(lone.connection, "properties")
        assert list(runs.runs) == [lone.connection]

        lone.end()
        runs.note(lone.connection, "properties")  # a frame that was buffered

        assert not runs.runs

    run_virtual(main())


def test_a_producer_of_delayed_messages_skips_the_fast_path_and_comes_back() -> None:
    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config())
        rig = SendRig(broker)
        await broker.topics.persist()
        lone, other = rig.connect(is_fast=True), rig.connect(is_fast=True)
        # The general path creates the queue with the first message.
        for frame in [PLAIN] + [DELAYED] * (RUN + 9) + [PLAIN] * (SKIPS - 10):
            lone.receive_bytes(frame)
            await asyncio.sleep(1)
        skipped = rig.fast_send.declined.copy()
        lone.receive_bytes(PLAIN)
        other.receive_bytes(PLAIN)
        await asyncio.sleep(1)

        assert [command.code for command in lone.sent()] == [0] * (RUN + SKIPS + 1)
        assert rig.stored_count() == RUN + SKIPS + 2
        assert skipped == {"queue": 1, "properties": RUN - 1, "skipped": SKIPS}
        assert rig.fast_send.declined == skipped
        await broker.stop()

    run_virtual(main())


def test_a_producer_of_unusual_batches_skips_the_fast_path() -> None:
    async def test(rig: SendRig) -> None:
        lone = rig.connect(is_fast=True)
        for number in range(RUN + 5):
            lone.receive_bytes(batch_frame(number, text="UNIQ_KEY\x01%s\x02DELAY\x010\x02"))
            await asyncio.sleep(1)

        assert [command.code for command in lone.sent()] == [0] * (RUN + 5)
        assert rig.fast_batch.declined["skipped"] == 5

    run_sends(test)
