"""A power cut is told apart from a kill, after which the log is complete."""

from __future__ import annotations

import pytest

from kourou.broker.controlling.power_cuts import is_shortened, note_boot, was_power_cut
from kourou.store.state.abort_file import remove_abort, write_abort
from kourou.testing.disk import SimDisk


def used(boot_id: str | None) -> SimDisk:
    """Return the disk of a broker that was ended by a kill or a power cut."""
    disk = SimDisk()
    note_boot(disk, boot_id)
    write_abort(disk, 7)
    return disk


@pytest.mark.parametrize(
    ("before", "now", "was_cut"),
    [("one", "one", False), ("one", "two", True), ("one", None, True), (None, None, True)],
)
def test_another_boot_after_an_unclean_end_is_a_power_cut(
    before: str | None, now: str | None, was_cut: bool
) -> None:
    assert was_power_cut(used(before), now) is was_cut


def test_a_clean_end_is_none() -> None:
    disk = used("one")
    remove_abort(disk)
    assert not was_power_cut(disk, "two")
    assert not was_power_cut(SimDisk(), "one")


def test_the_boot_is_durable_when_the_store_opens() -> None:
    disk = used("one")
    note_boot(disk, "two")
    disk.crash()
    assert not was_power_cut(disk, "two")


def test_a_shortened_replica_stays_one_until_it_has_joined_again() -> None:
    disk = used("one")
    assert was_power_cut(disk, "two")
    note_boot(disk, "two", shortened=True)
    assert is_shortened(disk)
    remove_abort(disk)
    assert is_shortened(disk), "also after a clean end"

    note_boot(disk, "two")
    assert not is_shortened(disk)
    assert not was_power_cut(disk, "two")
