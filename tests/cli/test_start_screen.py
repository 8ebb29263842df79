"""Tests of the start screen: its size, and the text for each state."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from kourou.cli.process import Damage, Ready, ready_line
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


def test_start_screen_fits_24_lines() -> None:
    lines = screen(certificate="/var/kourou/store/tls/server.crt").splitlines()

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_start_screen_shows_addresses_store_and_profile() -> None:
    text = words()

    assert "Name server 127.0.0.1:9876 the address for clients Broker" in text
    assert "Broker 127.0.0.1:10911 broker-a in DefaultCluster" in text
    assert "Store /var/kourou/store closed cleanly when last used, 71 GiB free" in text
    assert "Profile dev commit-log files of 64 MiB" in text


def test_long_path_is_not_wrapped() -> None:
    path = "/var/lib/" + "a directory with blanks/" * 5 + "store"

    assert f"Store        {path}" in screen(store=path).splitlines()


def test_text_is_wrapped_beside_its_label() -> None:
    lines = screen().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("Durability "))

    assert lines[first + 1].startswith(" " * 13)
    assert lines[first + 1][13] != " "


def test_durability_text_follows_the_flush_mode() -> None:
    assert "Acknowledged messages and messages that consumers receive are on disk" in words()
    assert "a power failure the last 500 ms" in words(flush_disk_type="ASYNC_FLUSH")


def test_self_signed_certificate_is_shown() -> None:
    shown = words(certificate="/var/kourou/store/tls/server.crt")
    assert "TLS self-signed tls/server.crt below the store" in shown
    assert "self-signed" not in words()


def test_next_steps_name_the_name_server() -> None:
    assert 'Next kourou send hello "first message" kourou receive' in words()
    assert "kourou topic list -n '127.0.0.1:5'" in words(namesrv="127.0.0.1:5")


def test_warning_is_shown_only_for_an_exposed_port() -> None:
    assert "Warning" not in words()
    exposed = words(is_exposed=True, broker="0.0.0.0:10911")
    assert "Warning: 0.0.0.0:10911 is open to other machines" in exposed
    assert "127.0.0.1:9876 the address for clients Broker" in exposed


def test_wildcard_name_server_shows_its_address_for_other_machines() -> None:
    shown = words(is_exposed=True, namesrv_for_others="10.0.0.5:9876")
    assert "127.0.0.1:9876 for local clients; 10.0.0.5:9876 for others" in shown


def test_joined_name_server_is_marked() -> None:
    assert "10.0.0.1:9876 joined; runs in another process" in words(
        own_namesrv=False, namesrv="10.0.0.1:9876"
    )


def test_start_screen_lists_supported_features() -> None:
    reported = words().partition(" On ")[2]
    served, _, not_served = reported.partition("Off not supported: ")
    for feature in ("transactions", "scheduled messages", "order", "SQL", "requests and replies"):
        assert feature in served
        assert feature not in not_served


def test_retention_is_shown() -> None:
    assert "Keeps 72 h (fileReservedTime); older files are deleted at hours 04" in words()
    assert "Keeps 12 h (" in words(kept_hours=12, expired_at="04;16")
    assert "at hours 04, 16 " in words(kept_hours=12, expired_at="04;16")


def test_index_lag_is_shown_from_1_mib() -> None:
    assert "index" not in words(index_lag_bytes=500)
    assert "index 1.5 GiB of the log not indexed yet" in words(index_lag_bytes=3 << 29)


def test_damage_is_shown_with_position_and_remedy() -> None:
    one = Damage("commitlog/00000000000067108864", 254, 1_254, "the body's checksum differs")
    text = words(damaged=(one,))

    assert "Damaged" not in words()
    assert f"Damaged {one.file} at byte 254, 1,254 bytes: the body's checksum differs" in text
    assert "kourou broker set broker-a skipDamagedRecords=true" in text
    assert "             kourou store check /var/kourou/store\n" in screen(damaged=(one,))


def test_list_of_damage_is_limited() -> None:
    parts = tuple(Damage("commitlog/0", n, 5, "no record") for n in range(9))

    assert "at byte 2, 5 bytes: no record ... and 6 more" in words(damaged=parts)
    assert json.loads(ready_line(dataclasses.replace(READY, damaged=parts)))["damaged"][8] == {
        "file": "commitlog/0",
        "byte": 8,
        "size": 5,
        "reason": "no record",
    }


def test_ready_line_is_one_line_of_json() -> None:
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
def test_sizes_are_printed_with_units(count: int, text: str) -> None:
    assert size_text(count) == text
