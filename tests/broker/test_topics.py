"""Topics are created by Java's rules, and saved topics survive a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.topics import CHANGES_MAX, FILE_NAME, TOPICS_MAX, Topics
from kourou.errors import RemoteSystemError
from kourou.model.topic import GROUP_LENGTH_MAX, TopicConfig
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.topic_table import (
    RegisterBody,
    TopicConfigTable,
    decode_register_body,
    decode_topic_config_table,
    encode_register_body,
    encode_topic_config_table,
)
from kourou.store.state.config_file import ConfigFile, unseal
from kourou.testing.clock import ManualClock
from kourou.testing.disk import SimDisk
from kourou.testing.runtime import call_directly

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


def topics_on(disk: SimDisk, **options: object) -> Topics:
    config = BrokerConfig(**options)  # type: ignore[arg-type]
    file = ConfigFile(disk, FILE_NAME, decode_topic_config_table)
    return Topics(file, config, call_directly, ManualClock())


def test_a_new_broker_has_the_topics_that_a_new_java_broker_registers(golden: Golden) -> None:
    request, _ = golden("103_REGISTER_BROKER_broker-start")
    registered = decode_register_body(request.body)

    table = topics_on(SimDisk()).table()

    assert dict(table.topics) == dict(registered.table.topics)
    assert table.data_version.counter == registered.table.data_version.counter


def test_without_automatic_creation_tbw102_does_not_exist() -> None:
    topics = topics_on(SimDisk(), auto_create_topic_enable=False)

    assert topics.get("TBW102") is None
    assert topics.find_for_send("T", "TBW102", 4, is_unit=False) is None


def test_the_first_send_creates_the_topic_with_the_settings_of_the_default_topic() -> None:
    topics = topics_on(SimDisk())

    few = topics.find_for_send("Few", "TBW102", 4, is_unit=False)
    assert few is not None
    assert topics.get("Few") is None  # the send may still be refused
    topics.ensure(few)
    many = topics.find_for_send("Many", "TBW102", 100, is_unit=True)
    none = topics.find_for_send("None", "TBW102", 0, is_unit=False)

    assert few == TopicConfig("Few", 4, 4, 6)
    assert many == TopicConfig("Many", 8, 8, 6, topic_sys_flag=1)
    assert none == TopicConfig("None", 1, 1, 6)
    assert topics.get("Few") == few


def test_topics_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = topics_on(SimDisk())
    monkeypatch.setattr("kourou.broker.topics.TOPICS_MAX", len(topics) + 1)
    topics.put(TopicConfig("T", 1, 1))

    with pytest.raises(RemoteSystemError, match=r"topic U cannot be created: .* limit"):
        topics.ensure(TopicConfig("U", 1, 1))
    topics.put(TopicConfig("T", 2, 2))
    topics.delete("T")
    topics.ensure(TopicConfig("U", 1, 1))
    topics.ensure(TopicConfig("U", 9, 9))
    assert topics.get("U") == TopicConfig("U", 1, 1)


def test_the_maximum_number_of_topics_fits_into_a_registration() -> None:
    names = (f"%RETRY%{number:0{GROUP_LENGTH_MAX}d}" for number in range(TOPICS_MAX))
    table = TopicConfigTable({name: TopicConfig(name, 1024, 1024) for name in names})

    assert len(encode_register_body(RegisterBody(table))) < FRAME_SIZE_MAX - 4096


def test_a_default_topic_without_perm_inherit_creates_nothing() -> None:
    topics = topics_on(SimDisk())

    assert topics.find_for_send("T", "SELF_TEST_TOPIC", 4, is_unit=False) is None
    assert topics.find_for_send("T", "NoSuchTopic", 4, is_unit=False) is None


def test_a_saved_tbw102_is_ignored_when_automatic_creation_is_off() -> None:
    disk = SimDisk()
    asyncio.run(topics_on(disk).persist())

    topics = topics_on(disk, auto_create_topic_enable=False)

    assert topics.get("TBW102") is not None
    assert topics.find_for_send("T", "TBW102", 4, is_unit=False) is None


def test_a_retry_topic_is_always_created() -> None:
    topics = topics_on(SimDisk(), auto_create_topic_enable=False)

    made = topics.find_for_send("%RETRY%g", "TBW102", 4, is_unit=True)

    assert made == TopicConfig("%RETRY%g", 1, 1, 6, topic_sys_flag=2)


def test_an_existing_topic_is_returned_as_it_is() -> None:
    topics = topics_on(SimDisk())
    topics.put(TopicConfig("T", 2, 3, 4))

    assert topics.find_for_send("T", "TBW102", 8, is_unit=False) == TopicConfig("T", 2, 3, 4)


def test_each_change_counts_once_and_is_reported() -> None:
    topics = topics_on(SimDisk())
    reported: list[int] = []
    topics.on_changed = lambda: reported.append(topics.data_version.counter)
    topic = TopicConfig("T")

    topics.put(topic)
    topics.put(topic)
    topics.put(replace(topic, perm=4))
    assert topics.delete("T")
    assert not topics.delete("T")

    assert reported == [1, 2, 3]


def test_a_saved_topic_survives_a_crash() -> None:
    async def main(disk: SimDisk) -> None:
        topics = topics_on(disk)
        topics.put(TopicConfig("T", attributes={"message.type": "FIFO"}))
        assert not topics.is_saved("T")
        await topics.persist()
        assert topics.is_saved("T")

    disk = SimDisk(seed=3)
    asyncio.run(main(disk))
    disk.crash()

    assert topics_on(disk).get("T") == TopicConfig("T", attributes={"message.type": "FIFO"})
    assert topics_on(disk).is_saved("T")


async def make_three_and_delete_one(topics: Topics, saved: set[str], deleted: set[str]) -> None:
    """Record the topics that were reported as saved."""
    for name in ("A", "B", "C"):
        topics.put(TopicConfig(name))
        await topics.persist()
        saved.add(name)
    saved.remove("A")  # from here on it may exist or not
    topics.delete("A")
    await topics.persist()
    deleted.add("A")


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_step_of_the_disk_keeps_what_was_saved_and_deleted(seed: int) -> None:
    deleted = set[str]()
    for step in range(100):
        disk = SimDisk(seed)
        topics, saved, deleted = topics_on(disk), set[str](), set[str]()
        disk.fail_after(step, OSError(5, "the process ends here"))
        with suppress(OSError):
            asyncio.run(make_three_and_delete_one(topics, saved, deleted))
        disk.crash()
        after = topics_on(disk)
        assert all(after.is_saved(name) for name in saved)
        assert not any(after.get(name) for name in deleted)
    assert deleted, "the last step came after all of it"


def test_a_file_that_cannot_be_written_leaves_the_topic_unsaved() -> None:
    async def main(disk: SimDisk) -> None:
        topics = topics_on(disk)
        topics.put(TopicConfig("T"))
        disk.fail_after(0, OSError(28, "No space left on device"))
        with pytest.raises(OSError, match="No space"):
            await topics.persist()
        assert not topics.is_saved("T")
        await topics.persist()
        assert topics.is_saved("T")

    asyncio.run(main(SimDisk()))


def test_a_topic_that_changes_while_the_file_is_written_is_saved_by_the_next_write() -> None:
    async def main(disk: SimDisk) -> None:
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def offload(function: Any, /, *args: Any, **kwargs: Any) -> Any:
            entered.set()
            await go_on.wait()
            return function(*args, **kwargs)

        file = ConfigFile(disk, FILE_NAME, decode_topic_config_table)
        topics = Topics(file, BrokerConfig(), offload, ManualClock())
        saving = asyncio.create_task(topics.persist())
        await entered.wait()
        topics.put(TopicConfig("Late"))
        go_on.set()
        await saving
        assert not topics.is_saved("Late")
        await topics.persist()
        assert topics.is_saved("Late")

    asyncio.run(main(SimDisk()))


def test_the_latest_changes_are_held_separately() -> None:
    topics = topics_on(SimDisk())
    start = topics.change_number
    topics.put(TopicConfig("A"))
    topics.put(TopicConfig("B"))
    middle = topics.change_number
    topics.put(TopicConfig("A", perm=4))
    topics.put(TopicConfig("C"))
    topics.delete("C")

    assert topics.changed_since(start) == TopicConfigTable(
        {"A": TopicConfig("A", perm=4), "B": TopicConfig("B")}, topics.data_version
    )
    later = topics.changed_since(middle)
    assert later is not None
    assert set(later.topics) == {"A"}
    now = topics.changed_since(topics.change_number)
    assert now is not None
    assert not now.topics


def test_changed_since_returns_none_if_changes_are_missing() -> None:
    topics = topics_on(SimDisk())
    start = topics.change_number
    for number in range(CHANGES_MAX):
        topics.put(TopicConfig(f"T{number}"))
    assert topics.changed_since(start) is not None
    topics.put(TopicConfig("One more"))

    assert topics.changed_since(start) is None
    assert topics.changed_since(start + 1) is not None


def test_too_many_topics_in_one_list_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = topics_on(SimDisk())
    monkeypatch.setattr("kourou.broker.topics.TOPICS_MAX", len(topics) + 1)
    version = topics.data_version

    with pytest.raises(RemoteSystemError, match="topic A cannot be created"):
        topics.put_all([TopicConfig("A"), TopicConfig("B"), TopicConfig("TBW102", 1, 1)])

    assert topics.data_version == version
    topics.put_all([TopicConfig("A"), TopicConfig("A", perm=4), TopicConfig("TBW102", 1, 1)])
    assert topics.get("A") == TopicConfig("A", perm=4)


def test_ordered_topics_are_marked_and_never_unmarked() -> None:
    topics = topics_on(SimDisk())
    topics.put(TopicConfig("A"))
    topics.put(TopicConfig("B", order=True))

    topics.mark_ordered(["A", "unknown"])

    assert [topic.order for topic in topics if topic.name in "AB"] == [True, True]
    assert topics.get("unknown") is None
    version = topics.data_version
    topics.mark_ordered(["A"])
    assert topics.data_version == version


def test_a_version_without_a_change_is_saved_too() -> None:
    disk = SimDisk()
    topics = topics_on(disk)
    before = topics.data_version
    topics.new_version()
    asyncio.run(topics.persist())

    assert topics.data_version.counter == before.counter + 1
    assert topics_on(disk).data_version == topics.data_version


def test_changes_and_deletions_are_saved_in_one_complete_text() -> None:
    disk = SimDisk()
    topics = topics_on(disk)
    for name in ("B", "A", "C"):
        topics.put(TopicConfig(name))
    topics.delete("B")
    asyncio.run(topics.persist())

    text = unseal(disk.read(FILE_NAME, 0, disk.size(FILE_NAME))).data
    assert text == encode_topic_config_table(topics.table(), pretty=True)
    reopened = topics_on(disk)
    reopened.put(TopicConfig("D"))
    asyncio.run(reopened.persist())
    text = unseal(disk.read(FILE_NAME, 0, disk.size(FILE_NAME))).data
    assert text == encode_topic_config_table(reopened.table(), pretty=True)


def test_a_new_role_counts_as_a_change_of_all_topics() -> None:
    topics = topics_on(SimDisk())
    change, counter = topics.change_number, topics.data_version.counter

    topics.begin_role(3)
    assert topics.changed_since(change) is None
    assert (topics.data_version.state_version, topics.data_version.counter) == (3, counter + 1)

    topics.begin_role(3)
    topics.begin_role(2)
    assert (topics.data_version.state_version, topics.data_version.counter) == (3, counter + 1)
