"""Settings from file, environment and flags; invalid ones are refused with name and source."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from kourou.broker.rocketmq_keys import ROCKETMQ_KEYS
from kourou.errors import ConfigError
from kourou.properties_file import parse_properties
from kourou.settings import camel_case, load, wire_keys
from tests.documented_errors import only_raises

few = examples(max_examples=100, deadline=None)


class Flush(Enum):
    SYNC = "SYNC_FLUSH"
    ASYNC = "ASYNC_FLUSH"


@dataclass(frozen=True, kw_only=True)
class Store:
    segment_bytes: int = field(default=1024, metadata={"key": "mappedFileSizeCommitLog"})

    def __post_init__(self) -> None:
        if self.segment_bytes < 512:
            raise ConfigError(f"segment_bytes {self.segment_bytes} is below 512")


@dataclass(frozen=True, kw_only=True)
class Config:
    broker_name: str = "broker-a"
    port: int = field(default=10911, metadata={"key": "listenPort"})
    flush: Flush = field(default=Flush.SYNC, metadata={"key": "flushDiskType"})
    auto_create_topic_enable: bool = True
    advertise: str | None = None
    namesrv_addr: tuple[str, ...] = ()
    delays_ms: tuple[int, ...] = (1000,)
    root: Path = Path("store")
    store: Store = field(default_factory=Store)


def read(
    text: str | None = None,
    *,
    path: Path | None = None,
    environ: dict[str, str] | None = None,
    **flags: object,
) -> Config:
    return load(
        Config,
        path=path,
        text=text,
        environ=environ or {},
        prefix="KOUROU_BROKER_",
        flags=flags,
        unserved=frozenset({"transactionTimeOut", "haListenPort"}),
    )


def refusal(text: str | None = None, **sources: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, **sources)  # type: ignore[arg-type]
    return str(caught.value)


def test_defaults_are_used_if_nothing_is_given() -> None:
    assert read() == Config()


def test_broker_conf_of_rocketmq_is_read_by_its_keys() -> None:
    text = """
    # a comment, and ! too
    ! another
    brokerName = broker-b
    listenPort:11000
    flushDiskType ASYNC_FLUSH
    autoCreateTopicEnable=FALSE
    mappedFileSizeCommitLog=1073741824
    namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
    """

    assert read(text) == Config(
        broker_name="broker-b",
        port=11000,
        flush=Flush.ASYNC,
        auto_create_topic_enable=False,
        namesrv_addr=("10.0.0.1:9876", "10.0.0.2:9876"),
        store=Store(segment_bytes=1 << 30),
    )


def test_toml_accepts_both_spellings_and_native_values(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        'broker_name = "b"\nlistenPort = 1\nauto_create_topic_enable = false\n'
        'namesrv_addr = ["a:1", "b:2"]\nsegment_bytes = "2 MiB"\nroot = "/var/kourou"\n'
    )

    assert read(path=path) == Config(
        broker_name="b",
        port=1,
        auto_create_topic_enable=False,
        namesrv_addr=("a:1", "b:2"),
        root=Path("/var/kourou"),
        store=Store(segment_bytes=2 * 1024**2),
    )


def test_later_source_wins() -> None:
    file = "listenPort=1\nbrokerName=file\nadvertise=file"
    environ = {"KOUROU_BROKER_PORT": "2", "KOUROU_BROKER_BROKER_NAME": "environment"}

    config = read(file, environ=environ, port=3)

    assert (config.port, config.broker_name, config.advertise) == (3, "environment", "file")


def test_given_defaults_are_overridden_by_every_source() -> None:
    config = load(
        Config,
        environ={},
        prefix="X_",
        flags={"port": None},
        defaults={"port": 5, "segment_bytes": 4096, "broker_name": "d"},
        text="brokerName=file",
    )

    assert config == Config(port=5, broker_name="file", store=Store(segment_bytes=4096))


def test_flag_of_none_counts_as_not_given() -> None:
    assert read("listenPort=1", port=None).port == 1


def test_environment_variables_of_other_programs_are_ignored() -> None:
    assert read(environ={"KOUROU_NAMESRV": "x", "HOME": "/root"}) == Config()


def test_empty_text_sets_an_optional_field_to_none() -> None:
    assert read("advertise=x", environ={"KOUROU_BROKER_ADVERTISE": ""}).advertise is None


@pytest.mark.parametrize(
    ("sources", "named", "near"),
    [
        ({"text": "flushDiskTyp=SYNC_FLUSH"}, "flushDiskTyp", "flushDiskType"),
        ({"text": "brokername=x"}, "brokername", "brokerName"),
        (
            {"environ": {"KOUROU_BROKER_PORTT": "1"}},
            "the environment: unknown setting KOUROU_BROKER_PORTT",
            "KOUROU_BROKER_PORT",
        ),
        ({"portt": 1}, "the command line: unknown setting portt", "port"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest_known_one(
    sources: dict[str, object], named: str, near: str
) -> None:
    text = refusal(**sources)  # type: ignore[arg-type]

    assert named in text
    assert f"did you mean {near}?" in text


def test_unknown_key_without_a_similar_one_is_refused_without_hint() -> None:
    assert refusal("zzz=1") == "the config text: unknown setting zzz"


def test_unknown_key_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("colour=red")

    assert str(path) in refusal(path=path)


def test_unserved_key_logs_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "kourou.settings"):
        assert read("haListenPort=1\nhaListenPort=2\ntransactionTimeOut=6000") == Config()

    assert [record.getMessage().split()[1] for record in caplog.records] == [
        "key=haListenPort",
        "key=transactionTimeOut",
    ]


def test_one_setting_by_two_names_is_refused() -> None:
    assert refusal("listenPort=1\nport=2") == (
        "the config text: listenPort and port are two names of one setting; keep one"
    )


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        ({"text": "listenPort=10911x"}, "listenPort = '10911x' is not a whole number"),
        ({"text": "listenPort="}, "listenPort = '' is not a whole number"),
        ({"text": "listenPort=1 MiB"}, "listenPort = '1 MiB' is not a whole number"),
        ({"port": True}, "port = True is not a whole number"),
        ({"text": "autoCreateTopicEnable=yes"}, "'yes' is not true or false"),
        ({"auto_create_topic_enable": 1}, "1 is not true or false"),
        ({"text": "flushDiskType=SYNC"}, None),
        ({"text": "flushDiskType=FSYNC"}, "'FSYNC' is not one of SYNC_FLUSH, ASYNC_FLUSH"),
        ({"segment_bytes": "64 MB"}, "'64 MB' is not bytes, as 65536 or 64 MiB"),
        ({"broker_name": 5}, "broker_name = 5 is not text"),
        ({"text": "delaysMs=1;x"}, "delaysMs = '1;x' is not a whole number"),
        ({"namesrv_addr": ["a", 5]}, "namesrv_addr = ['a', 5] is not text"),
        (
            {"namesrv_addr": 5},
            "namesrv_addr = 5 is not a list, or text with ';' between its members",
        ),
    ],
)
def test_invalid_value_is_refused_with_the_allowed_ones(
    sources: dict[str, object], text: str | None
) -> None:
    if text is None:
        read(**sources)  # type: ignore[arg-type]
    else:
        assert text in refusal(**sources)  # type: ignore[arg-type]


def test_value_out_of_range_is_refused_with_its_source() -> None:
    text = refusal(environ={"KOUROU_BROKER_SEGMENT_BYTES": "100"})

    assert text == (
        "segment_bytes 100 is below 512 (KOUROU_BROKER_SEGMENT_BYTES is from the environment)"
    )


def test_list_members_have_their_type() -> None:
    assert read("delaysMs = 1000; 5000;").delays_ms == (1000, 5000)


def test_missing_file_is_named(tmp_path: Path) -> None:
    text = refusal(path=tmp_path / "absent.conf")

    assert "absent.conf: No such file or directory" in text


def test_invalid_toml_file_is_named_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("port = \n")

    assert "broker.toml: not TOML: Invalid value (at line 1" in refusal(path=path)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000])
def test_toml_file_with_huge_numbers_or_depth_is_named(tmp_path: Path, value: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(f"port = {value}\n")

    assert "broker.toml: not TOML: " in refusal(path=path)


def test_toml_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_bytes(b"port = 1 # \xe9")

    assert "broker.toml: not UTF-8 at byte 11" in refusal(path=path)


def test_conf_file_that_is_not_utf_8_is_read_as_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"# gr\xfcn\nbrokerName=gr\xfcn")

    assert read(path=path).broker_name == "gr\u00fcn"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a = b = c", {"a": "b = c"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a=1,\\\n   2,\\\n   3", {"a": "1,2,3"}),
        ("a=ends\\\\\nb=1", {"a": "ends\\", "b": "1"}),
        ("a=\\\n# no comment", {"a": "# no comment"}),
        ("# comment \\\na=1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=\\u00e9\\t\\q", {"a": "\u00e9\tq"}),
        ("a=1  \t", {"a": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=cut\\", {"a": "cut"}),
        ("\\\n", {}),
    ],
)
def test_properties_are_parsed_as_in_java(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text, "x") == pairs


def test_incomplete_unicode_escape_is_refused_as_in_java() -> None:
    with pytest.raises(ConfigError, match=r"broker.conf: \\u in 'C:"):
        parse_properties(r"path=C:\users", "broker.conf")


def escape(text: str) -> str:
    """Write a key or value as java.util.Properties.store does."""
    return "".join(f"\\u{ord(c):04x}" if c in " \t\f\n\r\\=:#!" else c for c in text)


plain = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(plain.filter(bool), plain))
@few
def test_properties_round_trip(pairs: dict[str, str]) -> None:
    text = "\n".join(f"{escape(key)}={escape(value)}" for key, value in pairs.items())

    parsed = parse_properties(text, "x")

    # A blank at the end of a value is removed, also if written as an escape.
    assert parsed == {key: value.rstrip(" \t\f") for key, value in pairs.items()}


@given(st.text())
@few
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with only_raises(ConfigError):
        read(text)


@given(port=st.integers(), name=st.text(st.characters(codec="ascii", categories=["L", "N"])))
@few
def test_value_is_the_same_from_each_source(port: int, name: str) -> None:
    from_flags = read(port=port, broker_name=name)

    assert from_flags == read(f"listenPort={port}\nbrokerName={name}")
    assert from_flags == read(
        environ={"KOUROU_BROKER_PORT": str(port), "KOUROU_BROKER_BROKER_NAME": name}
    )


@given(st.integers(1, 10**6), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
@few
def test_sizes_may_have_a_binary_unit(count: int, unit: str) -> None:
    exponent = ["KiB", "MiB", "GiB", "TiB"].index(unit) + 1

    assert read(segment_bytes=f"{count} {unit}").store.segment_bytes == count * 1024**exponent


def test_wire_keys_list_every_field() -> None:
    assert wire_keys(Config) == {
        "brokerName": "broker_name",
        "listenPort": "port",
        "flushDiskType": "flush",
        "autoCreateTopicEnable": "auto_create_topic_enable",
        "advertise": "advertise",
        "namesrvAddr": "namesrv_addr",
        "delaysMs": "delays_ms",
        "root": "root",
        "mappedFileSizeCommitLog": "segment_bytes",
    }


def test_camel_case_matches_rocketmq() -> None:
    assert camel_case("auto_create_topic_enable") == "autoCreateTopicEnable"
    assert camel_case("port") == "port"


def test_rocketmq_keys_are_complete() -> None:
    assert {"namesrvAddr", "listenPort", "flushDiskType", "useTLS"} <= ROCKETMQ_KEYS
    assert {"storePathCommitLog", "transactionTimeOut"} <= ROCKETMQ_KEYS
    assert all(key.isidentifier() for key in ROCKETMQ_KEYS)
