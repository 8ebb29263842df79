"""JSON is decoded in both forms and encoded in Java's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue
from kourou.protocol.fastjson import DEPTH_MAX, dumps, loads
from tests.documented_errors import only_raises

CONFIG = Path(__file__).parent.parent / "golden" / "config"
texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
queues = st.builds(MessageQueue, texts, texts, st.integers(-(2**31), 2**31 - 1))


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.dictionaries(texts, inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=3)
        | st.dictionaries(queues, inner, max_size=3)
        | st.lists(inner, max_size=3)
    )


values = st.recursive(st.none() | st.booleans() | numbers | texts, objects, max_leaves=10)


def plain(value: object) -> object:
    """Return the value that `loads` returns for the text of `value` from `dumps`."""
    if isinstance(value, dict):
        return {plain_key(key): plain(one) for key, one in value.items() if one is not None}
    return [plain(one) for one in value] if isinstance(value, list) else value


def plain_key(key: object) -> object:
    if not isinstance(key, MessageQueue):
        return str(key)
    members = {"brokerName": key.broker_name, "queueId": key.queue_id, "topic": key.topic}
    return loads_key(members)


def loads_key(members: dict[str, object]) -> str:
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False)


@given(values, st.booleans())
def test_encoded_value_decodes_to_the_same(value: object, pretty: bool) -> None:
    text = dumps(value, pretty=pretty)
    expected = json.loads(json.dumps(plain(value)))
    # A key's control characters may be escaped in two ways, so compare them decoded.
    assert unescaped(loads(text)) == unescaped(expected)
    assert unescaped(loads(text.decode())) == unescaped(expected)


def unescaped(value: Any) -> object:
    if isinstance(value, dict):
        return {
            str(json.loads(key)) if key.startswith('{"brokerName"') else key: unescaped(one)
            for key, one in value.items()
        }
    return [unescaped(one) for one in value] if isinstance(value, list) else value


def test_integer_keys_are_written_bare_and_in_order_of_value() -> None:
    assert dumps({10: "b", 2: "a", -1: "c"}) == b'{-1:"c",2:"a",10:"b"}'


def test_queues_are_written_as_bare_objects() -> None:
    table = {MessageQueue("T", "b", 1): 6, MessageQueue("T", "b", 0): 5}

    assert dumps({"offsetTable": table}) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,'
        b'{"brokerName":"b","queueId":1,"topic":"T"}:6}}'
    )


def test_members_that_are_none_are_omitted_but_elements_are_not() -> None:
    assert dumps({"b": None, "a": [None, True, 1.5, "x"]}) == b'{"a":[null,true,1.5,"x"]}'


def test_text_is_written_raw() -> None:
    assert dumps('标签/"\n') == '"标签/\\"\\n"'.encode()


def test_pretty_form_equals_that_of_config_files() -> None:
    value: dict[str, object] = {"table": {1: {"o": [0, 1], "s": ["x"], "e": {}, "l": ()}}}

    assert dumps(value, pretty=True) == (
        b'{\n\t"table":{\n\t\t1:{\n\t\t\t"e":{},\n\t\t\t"l":[],\n\t\t\t"o":[0,1],\n'
        b'\t\t\t"s":[\n\t\t\t\t"x"\n\t\t\t]\n\t\t}\n\t}\n}'
    )


@pytest.mark.parametrize("name", ["topics", "subscriptionGroup", "consumerOffset", "delayOffset"])
def test_config_files_of_java_have_the_same_lines(name: str) -> None:
    text = (CONFIG / f"{name}.json").read_bytes()

    # Java's maps are in hash order, ours are sorted; integer keys were decoded as texts.
    assert lines(dumps(loads(text), pretty=True)) == lines(text)


def lines(text: bytes) -> list[bytes]:
    return sorted(line.rstrip(b",").replace(b'"', b"") for line in text.split(b"\n"))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (float("nan"), ValueError),
        ([float("inf")], ValueError),
        ({"a": b"bytes"}, TypeError),
        ({(1, 2): 3}, TypeError),
        ({1: 1, "a": 1}, TypeError),
        ({True: 1}, TypeError),
        ("\ud800", ValueError),
    ],
)
def test_value_without_json_form_is_refused(value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        dumps(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:1,-2:3}", {"0": 1, "-2": 3}),
        ('{ 0 : {1:[]} , "a":[ ] }', {"0": {"1": []}, "a": []}),
        ("{true:1,false:2}", {"true": 1, "false": 2}),
        ('{{"b":1,"a":{2:3}}:4}', {'{"a":{"2":3},"b":1}': 4}),
        ("{{}:1}", {"{}": 1}),
        ('{0:"a,1:b","x\\"":{}}', {"0": "a,1:b", 'x"': {}}),
        ("{0:[true,false,null,-1.5e3,12]}", {"0": [True, False, None, -1500.0, 12]}),
        ('{0:"\\u00e9\\ud83d\\ude00é"}', {"0": "é\U0001f600é"}),
        ("{0:1,0:2}", {"0": 2}),
        ('{"a":1}', {"a": 1}),
        (" [1, 2] ", [1, 2]),
    ],
)
def test_both_forms_are_decoded(text: str, value: object) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value
    assert loads(memoryview(text.encode())) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{0",
        "{0:",
        "{0:1",
        "{0:1,",
        "{0:1,}",
        "{0:1]",
        "{0:[1,]}",
        "{0:[1}",
        "{0 1}",
        "{0:1}x",
        "{0:1}{}",
        "{1.5:1}",
        "{null:1}",
        "{[1]:1}",
        "{,:1}",
        "{0:,}",
        "{0:}",
        "{0::1}",
        "{0:01}",
        "{0:1.}",
        "{0:1e999}",
        "{0:nope}",
        "{0:NaN}",
        "{'a':1}",
        "{a:1}",
        '{0:"a}',
        '{0:"\\ud800"}',
        '{0:"\\x"}',
        '{0:"\n"}',
        "{0:" + "9" * 5000 + "}",
        "[" * 100_000,
        "{0:" * 100_000,
        "{" * 100_000,
        "{{{0:1}:1}:1}",
    ],
)
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(MalformedBodyError, match="not JSON"):
        loads(text.encode())


def test_bytes_that_are_not_utf8_are_refused() -> None:
    for data in (b'"\xff"', b'{0:"\xff"}', b"\xff"):
        with pytest.raises(MalformedBodyError, match="not JSON"):
            loads(data)


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> str:
        return "{0:" * depth + "1" + "}" * depth

    loads(nested(DEPTH_MAX))
    with pytest.raises(MalformedBodyError, match="nested deeper"):
        loads(nested(DEPTH_MAX + 1))


PIECES = ("{", "}", "[", "]", ":", ",", '"a"', "0", "-1.5", "true", "null", " ", '"', "\\", "x")


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join) | st.text(max_size=20))
@example("{{0:1}:{}}")
def test_arbitrary_texts_raise_only_malformed_body_errors(text: str) -> None:
    for form in (text, text.encode("utf-8", "surrogatepass")):
        with only_raises(MalformedBodyError):
            loads(form)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_raise_only_malformed_body_errors(data: bytes) -> None:
    with only_raises(MalformedBodyError):
        loads(data)


def test_long_text_with_bare_keys_needs_a_higher_limit() -> None:
    text = "{" + ",".join(f"{number}:1" for number in range(40_000)) + "}"

    with pytest.raises(MalformedBodyError, match=r"the text has 3\d+ bytes, .* up to 32768"):
        loads(text)
    assert len(loads(text, bare_keys_bytes_max=len(text))) == 40_000


@pytest.mark.parametrize(
    "text",
    [
        # As fastjson 1.2 writes a queue that occurred as a key before, and a repeated table.
        '{"a":{{"brokerName":"b","queueId":0,"topic":"T"}:1},"b":{{"$ref":"$.a.null"}:3}}',
        '{"a":{{"brokerName":"b","queueId":0,"topic":"T"}:1},"c":[{"$ref":"$.a.null"}]}',
        '{"d":{"c1":{},"c2":{"$ref":"$.d.c1"}}}',
        '{"$ref":"$"}',
        '[[{"x":{"$ref":".."}}]]',
        '[{"$ref":"@"}]',
    ],
)
def test_reference_is_refused(text: str) -> None:
    for data in (text, text.encode(), memoryview(text.encode())):
        with pytest.raises(MalformedBodyError, match="references are not supported"):
            loads(data)


@pytest.mark.parametrize(
    "value",
    [
        {"table": {"$ref": "x"}},
        {"$ref": "$.a", "b": 1},
        {"$ref": {"a": 1}},
        ["$ref", "$"],
        {"$refs": "$"},
    ],
)
def test_value_similar_to_a_reference_is_decoded(value: object) -> None:
    assert loads(dumps(value)) == value
