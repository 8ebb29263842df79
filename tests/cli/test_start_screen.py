"""The start screen fits a terminal and tells the truth about what is served."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from kourou.cli.ready import Damage, Ready, ready_line
from kourou.cli.start_screen import print_screen, size_text

READY = Ready(
    pid=17,
    namesrv="127.0.0.1:9876",
    own_namesrv=True,
    broker="127.0.0.1:10911",
    broker_name="broker-a",
    cluster="DefaultCluster",
    store="/var/kourou/store",
    found="closed cleanly when last used",
    kept_hours=72,
    expired_at="04",
    free_bytes=71 << 30,
    flush_disk_type="SYNC_FLUSH",
    flush_interval_ms=500,
    segment_bytes=64 << 20,
    profile="dev",
    is_exposed=False,
)


def screen(**changes: object) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_screen(dataclasses.replace(READY, **changes), console)  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def words(**changes: object) -> str:
    return " ".join(screen(**changes).split())


def test_it_is_one_screen() -> None:
    lines = screen(certificate="/var/kourou/store/tls/server.crt").splitlines()

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_it_says_where_everything_is() -> None:
    text = words()

    assert "Name server 127.0.0.1:9876 the address for clients Broker" in text
    assert "Broker 127.0.0.1:10911 broker-a in DefaultCluster" in text
    assert "Store /var/kourou/store closed cleanly when last used, 71 GiB free" in text
    assert "Profile dev commit-log files of 64 MiB" in text


def test_a_long_path_stays_in_one_piece_to_be_copied() -> None:
    path = "/var/lib/" + "a directory with blanks/" * 5 + "store"

    assert f"Store        {path}" in screen(store=path).splitlines()


def test_text_is_wrapped_beside_its_label() -> None:
    lines = screen().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("Durability "))

    assert lines[first + 1].startswith(" " * 13)
    assert lines[first + 1][13] != " "


def test_what_an_acknowledgement_means_follows_the_flush_mode() -> None:
    assert "An acknowledged message is on disk" in words()
    assert "a power cut the last 500 ms" in words(flush_disk_type="ASYNC_FLUSH")


def test_a_certificate_of_its_own_is_named() -> None:
    shown = words(certificate="/var/kourou/store/tls/server.crt")
    assert "TLS self-signed tls/server.crt below the store" in shown
    assert "self-signed" not in words()


def test_the_next_steps_work_as_they_stand() -> None:
    assert 'Next kourou send hello "first message" kourou receive' in words()
    assert "kourou topic list -n '127.0.0.1:5'" in words(namesrv="127.0.0.1:5")


def test_only_an_open_port_is_warned_about() -> None:
    assert "Warning" not in words()
    exposed = words(is_exposed=True, broker="0.0.0.0:10911")
    assert "Warning: 0.0.0.0:10911 is open to other machines" in exposed
    assert "127.0.0.1:9876 the address for clients Broker" in exposed


def test_where_the_name_server_listens_on_all_addresses_others_are_told_another() -> None:
    shown = words(is_exposed=True, namesrv_for_others="10.0.0.5:9876")
    assert "127.0.0.1:9876 for clients here; 10.0.0.5:9876 for others" in shown


def test_a_joined_name_server_is_said_to_run_elsewhere() -> None:
    assert "10.0.0.1:9876 joined; it runs elsewhere" in words(
        own_namesrv=False, namesrv="10.0.0.1:9876"
    )


def test_it_tells_what_the_table_of_features_tells() -> None:
    told = words().partition(" On ")[2]
    served, _, not_served = told.partition("Off not built yet: ")
    for feature in ("transactions", "messages at a time", "order", "SQL", "requests and replies"):
        assert feature in served
        assert feature not in not_served


def test_it_says_how_long_messages_are_kept() -> None:
    assert "Keeps 72 h older ones go in the hours 04 (fileReservedTime)" in words()
    assert "12 h older ones go in the hours 04, 16 (" in words(kept_hours=12, expired_at="04;16")


def test_an_index_that_lags_far_is_told() -> None:
    assert "index" not in words(index_lag_bytes=500)
    assert "index being made for 1.5 GiB of the log" in words(index_lag_bytes=3 << 29)


def test_damage_is_told_with_its_place_and_what_to_do() -> None:
    one = Damage("commitlog/00000000000067108864", 254, 1_254, "the body's checksum differs")
    text = words(damaged=(one,))

    assert "Damaged" not in words()
    assert f"Damaged {one.file} at byte 254, 1,254 bytes: the body's checksum differs" in text
    assert "kourou broker set broker-a skipDamagedRecords=true" in text
    assert "             kourou store check /var/kourou/store\n" in screen(damaged=(one,))


def test_of_much_damage_some_is_shown() -> None:
    parts = tuple(Damage("commitlog/0", n, 5, "no record") for n in range(9))

    assert "at byte 2, 5 bytes: no record ... and 6 more" in words(damaged=parts)
    assert json.loads(ready_line(dataclasses.replace(READY, damaged=parts)))["damaged"][8] == {
        "file": "commitlog/0",
        "byte": 8,
        "size": 5,
        "reason": "no record",
    }


def test_programs_get_one_line_that_begins_with_ready() -> None:
    line = ready_line(READY)

    assert line.startswith('{"ready": true, ')
    assert "\n" not in line
    assert json.loads(line)["broker"] == "127.0.0.1:10911"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (64 << 20, "64 MiB"),
        (1536 << 20, "1.5 GiB"),
        (3 << 40, "3 TiB"),
    ],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size_text(count) == text
