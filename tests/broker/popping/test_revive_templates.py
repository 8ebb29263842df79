"""Checkpoints and acks from templates have the same bytes as those from drafts."""

from __future__ import annotations

from random import Random

import pytest

from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.revive_log import ReviveLog
from kourou.broker.popping.revive_templates import PlainCheckpoint
from kourou.model.properties import decode_properties
from kourou.protocol.popping.revive_records import NO_ACK_OFFSET, AckRecord
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config

NAMES = ("T", "%RETRY%g_T", "%s%d%%", "Ünicode", "11111111111111111")


@pytest.mark.parametrize("seed", range(3))
def test_records_from_templates_equal_those_from_drafts(seed: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        dice, revive_log = Random(seed), ReviveLog(broker.components.context, broker.timers)
        now_ms = broker.clock.now_ms()
        for _ in range(200):
            start, count = dice.randrange(10 ** dice.randrange(1, 15)), dice.randrange(1, 40)
            offsets = [start + number for number in range(count)]
            if dice.random() < 0.5:
                offsets = sorted(dice.sample(range(start, start + 900), count))
            key = CheckpointKey(
                dice.choice(NAMES),
                dice.choice(NAMES),
                dice.randrange(100),
                start,
                now_ms + dice.randrange(3),
                dice.choice(("broker-a", "Bröker", "b%d")),
            )
            queue, revive_queue = (*key[:3], key.broker_name), dice.randrange(9)
            invisible_ms = dice.randrange(2_000, 100_000)
            values = PlainCheckpoint(
                start, offsets, key.pop_time_ms, invisible_ms, dice.randrange(10**9), 7
            )
            text = revive_log.checkpoint_text(queue, revive_queue, values, now_ms)
            checkpoint = PopCheckpoint(key, tuple(offsets), invisible_ms, log_end=values.log_end)
            draft = revive_log.checkpoint_draft(checkpoint, revive_queue, now_ms, 7)
            assert text is not None
            assert (text.body, text.properties) == (draft.body, draft.properties)
            assert decode_properties(text.properties)["TAGS"] == text.tags

            is_single = len(offsets) == 1
            record = AckRecord(
                *key, offsets[0] if is_single else NO_ACK_OFFSET,
                None if is_single else tuple(offsets),
            )  # fmt: skip
            ack = revive_log.ack_text(
                key, revive_queue, offsets, values.pop_time_ms + 2_000, now_ms
            )
            draft = revive_log.ack_draft(record, revive_queue, values.pop_time_ms + 2_000, now_ms)
            assert ack is not None
            assert (ack.body, ack.properties) == (draft.body, draft.properties)
            assert decode_properties(ack.properties)["TAGS"] == ack.tags

    run_with_broker(test, is_delivering=True)


def test_record_that_is_due_or_may_be_refused_has_no_text() -> None:
    async def test(broker: SimulatedBroker) -> None:
        revive_log = ReviveLog(broker.components.context, broker.timers)
        now_ms = broker.clock.now_ms()
        key = CheckpointKey("T", "g", 0, 5, now_ms, "broker-a")
        for revive_at_ms in (now_ms, now_ms - 1, now_ms + 10**15):
            assert revive_log.ack_text(key, 0, [5], revive_at_ms, now_ms) is None
        assert revive_log.ack_text(key, 0, [5], now_ms + 1, now_ms) is not None
        broker.live_config.update({"timerCongestNumEachSlot": "10"}, 1)
        assert revive_log.ack_text(key, 0, [5], now_ms + 1, now_ms) is None

    run_with_broker(test, is_delivering=True, config=small_config())
