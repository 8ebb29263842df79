"""Detection of power cuts, after which a log may lack what its replica has acknowledged.

With ASYNC_FLUSH a power cut removes what was not synced; a kill -9 removes nothing, since the page
cache survives it. A file holds the id of the boot in which the store was last used: another id, and
a store that was not closed, mean a power cut. The replica is then shortened until another master
goes on without it; the file holds that instead, so that no further start forgets it.
"""

from __future__ import annotations

from typing import Final

from kourou.disk import Disk, replace
from kourou.store.state.abort_file import read_last_run

_FILE: Final = "config/kourou-boot"
_SHORTENED: Final = "shortened"


def was_power_cut(disk: Disk, boot_id: str | None) -> bool:
    """Return whether the store's last run may have ended by a power cut.

    Args:
        disk: holds the store, which is closed.
        boot_id: see `kourou.clock.boot_id`; None: any end but a clean one may have been one.
    """
    if read_last_run(disk).was_clean:
        return False
    return boot_id is None or _saved(disk) != boot_id


def is_shortened(disk: Disk) -> bool:
    """Return whether an earlier run began after a power cut, and did not join again."""
    return _saved(disk) == _SHORTENED


def note_boot(disk: Disk, boot_id: str | None, *, shortened: bool = False) -> None:
    """Save the id of this boot durably, before the store is opened, or that it is shortened."""
    text = _SHORTENED if shortened else boot_id or ""
    if (_saved(disk) or "") != text:
        directory = _FILE.rpartition("/")[0]
        if not disk.exists(directory):
            disk.make_directory(directory)
            disk.sync_directory("")
        replace(disk, _FILE, text.encode(), backup=None)


def _saved(disk: Disk) -> str | None:
    if not disk.exists(_FILE):
        return None
    return disk.read(_FILE, 0, disk.size(_FILE)).decode(errors="replace")
