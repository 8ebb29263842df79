"""Groups are created as by Java, and their file has Java's format."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kourou.broker.groups import FILE_NAME, Groups
from kourou.errors import CorruptRecordError, InvalidGroupError
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TOOLS_GROUP
from kourou.protocol.groups import decode_subscription_group_table
from kourou.store.state.config_file import ConfigFile, unseal
from kourou.testing.clock import ManualClock
from kourou.testing.disk import SimDisk
from kourou.testing.runtime import call_directly

GOLDEN = Path(__file__).parent.parent / "golden" / "config" / "subscriptionGroup.json"


def groups_on(disk: SimDisk, *, auto_create: bool = True) -> Groups:
    file = ConfigFile(disk, FILE_NAME, decode_subscription_group_table)
    return Groups(file, call_directly, ManualClock(), auto_create=auto_create)


def disk_with(text: bytes) -> SimDisk:
    disk = SimDisk()
    disk.make_directory("config")
    disk.write(FILE_NAME, 0, [text])
    return disk


def saved_text(disk: SimDisk) -> bytes:
    return unseal(disk.read(FILE_NAME, 0, disk.size(FILE_NAME))).data


def test_a_new_broker_knows_the_group_of_the_admin_tools() -> None:
    groups = groups_on(SimDisk(), auto_create=False)

    assert groups.names() == [TOOLS_GROUP]
    assert groups.get_or_create(TOOLS_GROUP) == SubscriptionGroup(TOOLS_GROUP)


def test_the_first_use_creates_a_group_with_javas_defaults() -> None:
    groups = groups_on(SimDisk())

    made = groups.get_or_create("g")

    assert made == SubscriptionGroup("g", retry_queue_nums=1, retry_max_times=16)
    assert groups.get("g") is made
    assert groups.data_version.counter == 1


def test_without_automatic_creation_only_system_groups_are_created() -> None:
    groups = groups_on(SimDisk(), auto_create=False)

    assert groups.get_or_create("g") is None
    assert groups.get_or_create("CID_RMQ_SYS_x") is not None


@pytest.mark.parametrize("name", ["", " ", "bad group!", "x" * 121])
def test_a_group_with_an_invalid_name_is_never_created(name: str) -> None:
    groups = groups_on(SimDisk())

    assert groups.get_or_create(name) is None
    with pytest.raises(InvalidGroupError):
        groups.put(SubscriptionGroup(name))
    assert groups.data_version.counter == 0


def test_the_number_of_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kourou.broker.groups.GROUPS_MAX", 2)
    groups = groups_on(SimDisk())
    assert groups.get_or_create("g") is not None

    assert groups.get_or_create("h") is None
    with pytest.raises(InvalidGroupError, match="2 groups"):
        groups.put(SubscriptionGroup("h"))
    groups.put(SubscriptionGroup("g", retry_max_times=1))
    groups.delete("g")
    assert groups.get_or_create("h") is not None


def test_an_equal_group_is_no_change_and_a_deleted_group_is_removed() -> None:
    groups = groups_on(SimDisk())
    groups.put(SubscriptionGroup("g", retry_max_times=3))
    groups.put(SubscriptionGroup("g", retry_max_times=3))
    assert groups.data_version.counter == 1

    assert groups.delete("g")
    assert not groups.delete("g")

    assert groups.get("g") is None
    assert groups.data_version.counter == 2


def test_javas_file_is_read_and_written_with_the_same_lines() -> None:
    disk = disk_with(GOLDEN.read_bytes())
    groups = groups_on(disk)
    before = groups.data_version.counter

    groups.put(SubscriptionGroup("zz_new"))
    asyncio.run(groups.persist())
    groups.delete("zz_new")
    asyncio.run(groups.persist())

    theirs = decode_subscription_group_table(GOLDEN.read_bytes())
    ours = decode_subscription_group_table(saved_text(disk))
    assert dict(ours.groups) == dict(theirs.groups)
    assert groups.data_version.counter == before + 2
    lines = sorted(line.strip(b"\t,") for line in GOLDEN.read_bytes().split(b"\n"))
    version = (b'"counter"', b'"timestamp"')
    assert [line for line in lines if not line.startswith(version)] == [
        line
        for line in sorted(line.strip(b"\t,") for line in saved_text(disk).split(b"\n"))
        if not line.startswith(version)
    ]


def test_read_bans_in_javas_file_are_loaded() -> None:
    disk = disk_with(b'{"forbiddenTable":{"g":{"T":4,"U":2}},"subscriptionGroupTable":{}}')
    groups = groups_on(disk)

    assert groups.is_read_forbidden("g", "T")
    assert not groups.is_read_forbidden("g", "U")
    assert not groups.is_read_forbidden("h", "T")
    groups.get_or_create("g")
    asyncio.run(groups.persist())
    assert groups_on(disk).is_read_forbidden("g", "T")


def test_a_saved_group_survives_a_crash() -> None:
    disk = SimDisk(seed=5)
    groups = groups_on(disk)
    groups.put(SubscriptionGroup("g", consume_enable=False))
    asyncio.run(groups.persist())
    disk.crash()

    assert groups_on(disk).get("g") == SubscriptionGroup("g", consume_enable=False)


def test_an_unreadable_file_prevents_the_start() -> None:
    with pytest.raises(CorruptRecordError, match="subscriptionGroup"):
        groups_on(disk_with(b"{ torn"))


def test_deletion_is_kept_until_the_log_before_it_has_expired() -> None:
    disk, bounds = SimDisk(), [0, 500]

    def opened() -> Groups:
        file = ConfigFile(disk, FILE_NAME, decode_subscription_group_table)
        clock = ManualClock()
        return Groups(file, call_directly, clock, log_bounds=lambda: (bounds[0], bounds[1]))

    groups = opened()
    groups.get_or_create("g")
    assert not groups.was_deleted_after("g", 499)
    groups.delete("g")
    groups.get_or_create("g")
    asyncio.run(groups.persist())
    assert b"kourouDeletedGroups" not in groups.body()

    groups = opened()
    assert groups.was_deleted_after("g", 499)
    assert not groups.was_deleted_after("g", 500)
    assert not groups.was_deleted_after("g", None)
    assert not groups.was_deleted_after("h", 499)
    bounds[0] = 500
    assert not opened().was_deleted_after("g", 499)
