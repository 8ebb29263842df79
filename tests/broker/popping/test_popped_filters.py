"""Members that pop a topic with different filters are found, and named once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kourou.broker.popping import popped_filters
from kourou.broker.popping.popped_filters import KEEP_MS, PoppedFilters, Use
from kourou.protocol.connections import (
    GetConsumerConnectionListRequestHeader,
    decode_consumer_connection,
)
from kourou.protocol.kv_config import decode_kv_table
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.popping.pop_rig import GROUP, TOPIC, PopRig

ONE, TWO, THREE = (("10.0.0.1", port) for port in (1, 2, 3))


def note(filters: PoppedFilters, client: tuple[str, int], text: str | None, at_ms: int = 0) -> None:
    filters.note("T", "g", "TAG", text, Use(client, at_ms))


def test_different_filters_are_named_with_a_client_of_each() -> None:
    filters = PoppedFilters()
    note(filters, ONE, "a")
    note(filters, TWO, "b || c")
    filters.note("T", "g", "SQL92", "n > 1", Use(THREE, 0))
    assert filters.differences("g", 0) == {
        "T": "T: 'SQL92 n > 1' by 10.0.0.1:3, 'a' by 10.0.0.1:1, 'b || c' by 10.0.0.1:2"
    }
    assert filters.groups(0) == ["g"]


@pytest.mark.parametrize("texts", [(None, "", "*"), ("a", "a", "a")])
def test_equal_filters_are_no_difference(texts: tuple[str | None, ...]) -> None:
    filters = PoppedFilters()
    for client, text in zip((ONE, TWO, THREE), texts, strict=True):
        note(filters, client, text)
    assert filters.differences("g", 0) == {}
    assert filters.groups(0) == []


def test_client_that_changes_its_filter_differs_from_no_one() -> None:
    filters = PoppedFilters()
    note(filters, ONE, "a")
    note(filters, ONE, "b")
    assert filters.differences("g", 0) == {}


def test_filter_of_a_client_that_stopped_is_forgotten() -> None:
    filters = PoppedFilters()
    note(filters, ONE, "a", 0)
    note(filters, TWO, "b", KEEP_MS)
    assert filters.groups(KEEP_MS) == ["g"]
    assert filters.groups(KEEP_MS + 1) == []


def test_topics_and_groups_are_compared_separately_and_removed() -> None:
    filters = PoppedFilters()
    filters.note("T", "g", None, "a", Use(ONE, 0))
    filters.note("U", "g", None, "b", Use(ONE, 0))
    filters.note("T", "h", None, "c", Use(ONE, 0))
    assert filters.groups(0) == []
    for topic, group in (("T", "g"), ("U", "g"), ("T", "h")):
        filters.note(topic, group, None, "other", Use(TWO, 0))
    filters.remove_topic("T")
    assert (filters.groups(0), list(filters.differences("g", 0))) == (["g"], ["U"])
    filters.remove_group("g")
    assert filters.groups(0) == []


def test_difference_is_logged_once_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    filters = PoppedFilters()
    with caplog.at_level(logging.WARNING):
        for at_ms in range(0, 50_000, 1_000):
            note(filters, ONE, "a", at_ms)
            note(filters, TWO, "b", at_ms)
        assert len(caplog.records) == 1
        note(filters, ONE, "b", 50_000)
        note(filters, ONE, "b", 50_000 + KEEP_MS)
        note(filters, TWO, "c", 50_001 + KEEP_MS)
    text = caplog.records[0].getMessage()
    assert text.startswith("pop.filters_differ group=g differences=T: 'a' by 10.0.0.1:1, 'b' by")
    assert len(caplog.records) == 2


def test_difference_that_heartbeats_show_is_not_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    filters = PoppedFilters(lambda group: group == "g")
    with caplog.at_level(logging.WARNING):
        note(filters, ONE, "a")
        note(filters, TWO, "b")
    assert not caplog.records
    assert filters.groups(0) == ["g"]


def test_number_of_filters_and_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popped_filters, "KEYS_MAX", 2)
    filters = PoppedFilters()
    for number in range(100):
        note(filters, ("10.0.0.2", number), f"tag-{number}")
    assert filters.differences("g", 0)["T"].count(" by ") == popped_filters.EXPRESSIONS_MAX
    for topic in ("U", "V"):
        for client, text in ((ONE, "a"), (TWO, "b")):
            filters.note(topic, "g", None, text, Use(client, 0))
    assert list(filters.differences("g", 0)) == ["T", "U"]
    for client, text in ((ONE, "a"), (TWO, "b")):
        filters.note("V", "g", None, text, Use(client, KEEP_MS + 1))
    assert list(filters.differences("g", KEEP_MS + 1)) == ["V"], "unused ones make room"


def test_members_that_pop_with_different_filters_are_reported_to_administrators() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        member = broker.connect("c", GROUP)
        await rig.pop(exp_type="TAG", exp="a")
        assert await report(broker) == ([], None)
        await PopRig(broker, 50_001).pop(exp_type="TAG", exp="b")
        (text,), groups = await report(broker)
        assert text.startswith(f"{TOPIC}: 'a' by ")
        assert groups == GROUP
        broker.components.context.clients.unregister_consumer(member, GROUP)
        assert await differing_groups(broker) is None, (
            "filters of members that left differ from none"
        )

    async def differing_groups(broker: SimulatedBroker) -> Any:
        info = await broker.ask(broker.handlers.stats.on_get_broker_runtime_info)
        return decode_kv_table(info.body).get("kourouDifferingGroups")

    async def report(broker: SimulatedBroker) -> tuple[list[str], Any]:
        header = GetConsumerConnectionListRequestHeader(GROUP)
        answer = await broker.ask(broker.admin.clients.on_get_consumer_connection_list, header)
        differences = list(decode_consumer_connection(answer.body).differences)
        return differences, await differing_groups(broker)

    run_with_broker(test, is_delivering=True)
