"""A short run of the chaos test of `make torture`."""

from __future__ import annotations

import sys
import threading

import pytest

from tests.client.consuming.messages import message_at
from tests.torture.chaos.ledger import BROADCAST, Ledger, body_of
from tests.torture.chaos.run import RIGHT, run
from tests.torture.figures import Size


@pytest.mark.slow
def test_all_kinds_of_messages_survive_kills() -> None:
    figures = run(Size(seconds=6), ["SYNC_FLUSH"], [RIGHT])

    assert [figure for figure in figures if not figure.held] == []


def test_a_message_delivered_before_its_acknowledgement_is_not_missing() -> None:
    ledger, keys = Ledger(), [f"plain-{number}" for number in range(20_000)]
    messages = [message_at(number) for number in range(len(keys))]
    for key, message in zip(keys, messages, strict=True):
        message.body = body_of(key)
    for key in keys:
        ledger.begin(key)
    meet = threading.Barrier(2)

    def hear() -> None:
        meet.wait()
        for message in messages:
            ledger.note(BROADCAST, message)

    hearing = threading.Thread(target=hear)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # switch threads as often as possible
    try:
        hearing.start()
        meet.wait()
        for key in keys:
            ledger.acknowledge(key)
        hearing.join()
    finally:
        sys.setswitchinterval(before_s)

    assert len(ledger.seen[BROADCAST]) == len(keys)
    assert ledger.missing[BROADCAST] == set()
