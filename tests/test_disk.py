"""OsDisk: bounded descriptors, threads, sparse files, and Java's lock between processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from kourou.disk import Buffer, OsDisk
from kourou.errors import StoreLockedError

TRY_LOCK = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    sys.exit(7)
"""


def is_locked_for_others(path: Path) -> bool:
    """Tell whether another process is refused the record lock that Java takes."""
    code = subprocess.run([sys.executable, "-c", TRY_LOCK, str(path)], check=False).returncode
    assert code in (0, 7)
    return code == 7


def open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_the_number_of_open_files_is_bounded(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path, open_files_max=4)
    before = open_descriptors()
    for number in range(50):
        disk.write(f"f{number}", 0, [b"x"])
    assert open_descriptors() <= before + 4
    assert all(disk.read(f"f{number}", 0, 1) == b"x" for number in range(50))
    disk.close()

    assert open_descriptors() == before


def test_a_file_that_was_read_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"abc")
    disk = OsDisk(tmp_path)
    assert disk.read("log", 0, 3) == b"abc"
    disk.write("log", 3, [b"d"])

    assert disk.read("log", 0, 9) == b"abcd"
    disk.close()


def test_a_file_that_may_not_be_written_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"abc")
    (tmp_path / "log").chmod(0o444)
    disk = OsDisk(tmp_path)

    assert disk.read("log", 0, 3) == b"abc"
    disk.close()


def test_an_extended_file_takes_no_space(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    disk.truncate("log", 1 << 30)

    assert disk.size("log") == 1 << 30
    assert (tmp_path / "log").stat().st_blocks * 512 < 1 << 20
    disk.close()


def test_threads_share_files_that_are_evicted_under_them(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path, open_files_max=2)
    names = [f"f{number}" for number in range(8)]
    for name in names:
        disk.write(name, 0, [name.encode()])
    wrong: list[bytes] = []

    def read_and_sync() -> None:
        for number in range(300):
            name = names[number % 8]
            data = disk.read(name, 0, 9)
            disk.sync(name)
            if data != name.encode():
                wrong.append(data)

    threads = [threading.Thread(target=read_and_sync) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    disk.close()


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short_write(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwrite(fd, b"".join(buffers)[:3], offset)

    monkeypatch.setattr(os, "pwritev", short_write)
    disk = OsDisk(tmp_path)
    disk.write("log", 1, [b"ab", b"cdef", b"g"])

    assert disk.read("log", 0, 99) == b"\0abcdefg"
    disk.close()


def test_the_lock_is_javas_record_lock(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    unlock = disk.lock("lock")
    assert is_locked_for_others(tmp_path / "lock")
    unlock()

    assert not is_locked_for_others(tmp_path / "lock")
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_a_refused_second_holder_does_not_release_the_lock(tmp_path: Path) -> None:
    # POSIX drops a process's lock when it closes any descriptor of the file.
    unlock = OsDisk(tmp_path).lock("lock")
    other = OsDisk(tmp_path)
    with pytest.raises(StoreLockedError, match="this process"):
        other.lock("lock")
    with pytest.raises(StoreLockedError, match="in use"):
        other.read("lock", 0, 4)

    assert is_locked_for_others(tmp_path / "lock")
    unlock()


def test_another_path_to_the_same_directory_is_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    unlock = OsDisk(tmp_path / "store").lock("lock")

    with pytest.raises(StoreLockedError):
        OsDisk(tmp_path / "link").lock("lock")
    unlock()


def test_a_lock_of_another_process_is_refused(tmp_path: Path) -> None:
    holder = TRY_LOCK + "\nprint('held', flush=True)\nsys.stdin.read()\n"
    (tmp_path / "lock").touch()
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(StoreLockedError, match="another process"):
            OsDisk(tmp_path).lock("lock")
        assert OsDisk(tmp_path).is_locked("lock")
        process.communicate(b"")

    assert not OsDisk(tmp_path).is_locked("lock")
    OsDisk(tmp_path).lock("lock")()


def test_looking_at_a_lock_does_not_release_it(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    unlock = disk.lock("lock")

    assert disk.is_locked("lock")
    assert is_locked_for_others(tmp_path / "lock")
    unlock()
    assert not disk.is_locked("lock")


def test_a_resident_read_is_none_on_a_file_system_without_nowait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    disk = OsDisk(tmp_path)
    disk.write("log", 0, [b"abc"])
    monkeypatch.setattr(os, "preadv", unsupported)

    assert disk.read_resident("log", 0, 3) is None
    disk.close()


def test_the_lock_covers_the_first_byte_only(tmp_path: Path) -> None:
    unlock = OsDisk(tmp_path).lock("lock")
    other_byte = TRY_LOCK.replace("1, 0)", "1, 1)")
    code = subprocess.run([sys.executable, "-c", other_byte, str(tmp_path / "lock")], check=False)

    assert code.returncode == 0
    unlock()
