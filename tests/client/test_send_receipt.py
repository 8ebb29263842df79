"""Receipts are equal, whichever constructor was used."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, replace

import pytest

from kourou.client.send_receipt import Durability, SendReceipt, SendStatus, stored_receipt
from kourou.model.queue import MessageQueue

QUEUE = MessageQueue("T", "b", 3)


def test_fast_receipt_equals_a_constructed_one() -> None:
    short = stored_receipt("id", "place", QUEUE, 17, Durability.REPLICATED, 3)
    made = SendReceipt("id", "place", QUEUE, 17, Durability.REPLICATED, copies=3)

    assert type(short) is SendReceipt
    assert (short, hash(short), repr(short)) == (made, hash(made), repr(made))
    assert short.status is SendStatus.SEND_OK
    assert pickle.loads(pickle.dumps(short)) == copy.copy(short) == made  # noqa: S301 - our own
    assert replace(short, queue_offset=18).queue_offset == 18
    assert asdict(short)["queue"] == {"topic": "T", "broker_name": "b", "queue_id": 3}
    with pytest.raises(FrozenInstanceError):
        short.queue_offset = 18  # type: ignore[misc]
