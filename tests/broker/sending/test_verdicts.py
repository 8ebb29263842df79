"""Verdicts on sends, and their agreement between the general path and the fast paths."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.config import BrokerConfig
from kourou.broker.sending.batch_columns import BatchReader
from kourou.broker.sending.verdicts import (
    JUDGED_IN_BATCHES,
    Verdict,
    batch_flag_refusal,
    is_unchanged_flag,
    judge_batched,
    judge_message,
    judge_reply,
    queue_refusal,
    storage_refusal,
    topic_refusal,
)
from kourou.errors import InvalidParameterError, MessageIllegalError, NoPermissionError
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.sysflag import COMPRESSED, INNER_BATCH, TRANSACTION_PREPARED
from kourou.model.topic import PERM_READ, TopicConfig
from kourou.protocol.frame import encode_frame
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.send_rig import SendRig, message
from kourou.testing.simulated_broker import SimulatedBroker, small_config

LIGHT = (names.INNER_MULTI_DISPATCH, names.LITE_TOPIC)
ANY_NAMES = st.sampled_from(
    [*JUDGED_IN_BATCHES, names.TAGS, names.KEYS, names.PRIORITY, names.INNER_NUM, "user"]
)
ANY_PROPERTIES = st.dictionaries(ANY_NAMES, st.sampled_from(["true", "1", "0", "x"]))


def is_refused(verdict: Verdict) -> bool:
    return isinstance(verdict.refusal, MessageIllegalError)


@pytest.mark.parametrize("name", LIGHT)
def test_refused_property_is_refused_alone_in_a_batch_and_in_a_reply(name: str) -> None:
    properties = {name: "x"}

    assert is_refused(judge_message(properties))
    assert is_refused(judge_batched(properties))
    assert is_refused(judge_reply(properties, 0, is_sent_back=False))


@pytest.mark.parametrize("name", LIGHT)
def test_fast_path_declines_a_refused_property(name: str) -> None:
    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config())
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=True)
        lone.receive_bytes(encode_frame(message(b"b" * 9_000, "")))  # creates the queue
        await asyncio.sleep(1)
        declined = rig.fast_send.declined.copy()
        lone.receive_bytes(encode_frame(message(b"b" * 9_000, f"{name}\x01x\x02")))
        await asyncio.sleep(1)
        refused = lone.sent()[-1]
        assert refused.code == 13
        assert set(rig.fast_send.declined - declined) == {"properties"}
        await broker.stop()

    run_virtual(main())


@pytest.mark.parametrize("name", JUDGED_IN_BATCHES)
def test_fast_path_declines_batches_with_a_judged_property(name: str) -> None:
    plain = BatchItem(0, b"body", encode_properties({names.TAGS: "a"}))
    judged = BatchItem(0, b"body", encode_properties({name: "true"}))

    assert BatchReader().read(memoryview(encode_batch([plain])), b"\x01T", 10) is not None
    assert BatchReader().read(memoryview(encode_batch([judged])), b"\x01T", 10) is None


@given(ANY_PROPERTIES)
def test_only_judged_properties_decide_on_a_message_of_a_batch(properties: dict[str, str]) -> None:
    judged = {name: properties[name] for name in JUDGED_IN_BATCHES if name in properties}

    whole, part = judge_batched(properties), judge_batched(judged)

    assert (whole.is_half, whole.is_delayed) == (part.is_half, part.is_delayed)
    assert str(whole.refusal) == str(part.refusal)


@given(ANY_PROPERTIES)
def test_a_refused_or_delayed_message_is_never_stored_unchanged(properties: dict[str, str]) -> None:
    for verdict in (judge_message(properties), judge_batched(properties)):
        if verdict.refusal is not None or verdict.is_delayed:
            assert not verdict.is_unchanged


@pytest.mark.parametrize(
    "name", [names.PRIORITY, names.POP_CK, names.CLUSTER, names.MSG_REGION, names.CRC32]
)
def test_properties_that_the_broker_sets_are_not_stored_unchanged(name: str) -> None:
    verdict = judge_message({name: "1"})

    assert verdict.refusal is None
    assert not verdict.is_unchanged


def test_a_half_message_needs_property_and_flag() -> None:
    half = {names.TRAN_MSG: "TRUE"}

    assert judge_message(half, TRANSACTION_PREPARED).is_half
    assert not judge_message({names.TRAN_MSG: "no"}).is_half
    assert is_refused(judge_message({}, TRANSACTION_PREPARED))
    assert is_refused(judge_message(half, TRANSACTION_PREPARED, is_sent_back=True))
    assert is_refused(judge_reply(half, 0, is_sent_back=False))
    assert is_refused(judge_batched(half))


def test_an_inner_batch_is_refused_as_a_message_and_within_a_batch() -> None:
    assert is_refused(judge_message({}, INNER_BATCH))
    assert is_refused(judge_message({names.INNER_NUM: "2"}))
    assert isinstance(batch_flag_refusal(INNER_BATCH), MessageIllegalError)
    assert batch_flag_refusal(COMPRESSED) is None


def test_compressed_bodies_need_a_further_step_only_if_they_are_verified() -> None:
    verifying = BrokerConfig(verify_compressed_bodies=True)

    assert is_unchanged_flag(COMPRESSED, BrokerConfig(), is_half=False)
    assert not is_unchanged_flag(COMPRESSED, verifying, is_half=False)
    assert not is_unchanged_flag(TRANSACTION_PREPARED, BrokerConfig(), is_half=False)
    assert is_unchanged_flag(TRANSACTION_PREPARED, BrokerConfig(), is_half=True)
    assert not is_unchanged_flag(1 << 20, BrokerConfig(), is_half=True)


def test_a_delay_that_is_no_number_is_refused() -> None:
    verdict = judge_message({names.DELAY: "soon"})

    assert is_refused(verdict)
    assert "soon" in str(verdict.refusal)


def test_an_ordered_topic_is_refused_by_a_broker_that_is_not_writable() -> None:
    ordered, other = TopicConfig("O", 4, 4, order=True), TopicConfig("T", 4, 4)
    closed = BrokerConfig(broker_permission=PERM_READ)

    assert isinstance(topic_refusal(ordered, closed), NoPermissionError)
    assert topic_refusal(other, closed) is None
    assert topic_refusal(ordered, BrokerConfig()) is None


def test_the_queue_after_the_last_is_refused() -> None:
    topic = TopicConfig("T", 4, 8)

    assert queue_refusal(topic, 7) is None
    assert queue_refusal(topic, -1) is None
    assert isinstance(queue_refusal(topic, 8), InvalidParameterError)


def test_a_compacted_topic_is_refused() -> None:
    compacted = TopicConfig("T", 4, 4, attributes={"cleanup.policy": "COMPACTION"})

    assert isinstance(storage_refusal(compacted), MessageIllegalError)
    assert storage_refusal(TopicConfig("T", 4, 4)) is None
