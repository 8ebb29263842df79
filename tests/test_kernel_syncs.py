"""KernelSyncs starts syncs without waiting and returns their results."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path

from kourou.kernel_syncs import NOT_BEGUN, KernelSyncs


def wait_for_the_end(syncs: KernelSyncs) -> None:
    # not select, which refuses descriptors from 1024 on, as the whole test suite has
    ended = select.poll()
    ended.register(syncs.ended_fd, select.POLLIN)
    assert ended.poll(30_000)


def sync(syncs: KernelSyncs, fd: int) -> int | None:
    """Return the result of a sync of the file."""
    assert syncs.start(fd)
    wait_for_the_end(syncs)
    return syncs.result()


def test_each_sync_has_one_result(tmp_path: Path) -> None:
    syncs = KernelSyncs.open()
    if syncs is None:
        return  # no io_uring: all syncs run on threads
    with (tmp_path / "file").open("wb") as file:
        for _ in range(20):  # more than the ring has entries
            os.write(file.fileno(), b"more")
            assert sync(syncs, file.fileno()) == 0
            assert syncs.result() is None
    syncs.close()


def test_a_failed_sync_returns_its_errno() -> None:
    syncs = KernelSyncs.open()
    if syncs is None:
        return
    reads, writes = os.pipe()
    assert sync(syncs, writes) == errno.EINVAL
    assert errno.EINVAL in NOT_BEGUN
    assert sync(syncs, 1_000_000) == errno.EBADF
    os.close(reads)
    os.close(writes)
    syncs.close()


def test_closed_instances_leave_no_descriptor_open(tmp_path: Path) -> None:
    def come_and_go(*, is_waited_for: bool) -> None:
        syncs = KernelSyncs.open()
        if syncs is not None:
            with (tmp_path / "file").open("wb") as file:
                file.write(b"some")
                file.flush()
                assert syncs.start(file.fileno())
                if is_waited_for:
                    wait_for_the_end(syncs)
                    syncs.result()
            syncs.close()

    come_and_go(is_waited_for=True)
    before = len(list(Path("/dev/fd").iterdir()))
    for number in range(10):
        come_and_go(is_waited_for=bool(number % 2))
    assert len(list(Path("/dev/fd").iterdir())) <= before
