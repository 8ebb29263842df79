"""Property expressions obey three-valued logic and agree with a small reference model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import FilterEvaluationError, FilterSyntaxError
from kourou.filter.java_numbers import compare_doubles, parse_double, parse_int, parse_long
from kourou.filter.parser import DEPTH_MAX, LENGTH_MAX
from kourou.filter.sql92 import (
    CACHED_LENGTH_MAX,
    CACHED_MAX,
    SqlFilter,
    check_sql,
    compile_sql,
)

Outcome = bool | str | None
"""Result of an expression: a truth value, None for unknown, or ERROR."""


class Case(NamedTuple):
    """An expression and the function that computes its expected result."""

    text: str
    of: Callable[[Mapping[str, str]], Outcome]


ERROR = "error"
NAMES = st.sampled_from("abc")
TEXTS = st.sampled_from(["1", "2", "-3", "x", "1.5", "true", "99999999999", " 1", ""])
SETS = st.dictionaries(NAMES, TEXTS)


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    is_int = digits.isdigit() and -(2**31) <= int(text) < 2**31
    return int(text) if is_int else None


@st.composite
def comparisons(draw: st.DrawFn) -> Case:
    name, sign = draw(NAMES), draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    number = draw(st.integers(-5, 5))

    def of(properties: Mapping[str, str]) -> Outcome:
        if name not in properties:
            return None
        value = _integer(properties[name])
        if value is None:
            return ERROR
        return {
            "=": value == number,
            "<>": value != number,
            "<": value < number,
            "<=": value <= number,
            ">": value > number,
            ">=": value >= number,
        }[sign]

    return Case(f"({name} {sign} {number})", of)


@st.composite
def others(draw: st.DrawFn) -> Case:
    name, text = draw(NAMES), draw(TEXTS)
    kind = draw(st.sampled_from(["is null", "in", "text", "contains", "constant"]))
    if kind == "is null":
        return Case(f"({name} IS NULL)", lambda p: name not in p)
    if kind == "in":
        return Case(
            f"({name} IN ('{text}', 'x'))", lambda p: p[name] in (text, "x") if name in p else None
        )
    if kind == "text":
        return Case(f"({name} = '{text}')", lambda p: p[name] == text if name in p else None)
    if kind == "contains":
        return Case(f"({name} CONTAINS '{text}')", lambda p: bool(text) and text in p.get(name, ""))
    truth = draw(st.sampled_from([True, False, None]))
    return Case({True: "TRUE", False: "FALSE", None: "NULL"}[truth], lambda _: truth)


def _not(case: Case) -> Case:
    def of(properties: Mapping[str, str]) -> Outcome:
        value = case.of(properties)
        return not value if isinstance(value, bool) else value

    return Case(f"(NOT {case.text})", of)


def _joined(left: Case, right: Case, word: str) -> Case:
    def of(properties: Mapping[str, str]) -> Outcome:
        decides = word == "OR"
        first = left.of(properties)
        if first == ERROR or first is decides:
            return first
        second = right.of(properties)
        if second == ERROR or second is decides:
            return second
        return None if first is None or second is None else not decides

    return Case(f"({left.text} {word} {right.text})", of)


CASES = st.recursive(
    st.one_of(comparisons(), others()),
    lambda inner: st.one_of(
        st.builds(_not, inner),
        st.builds(_joined, inner, inner, st.sampled_from(["AND", "OR"])),
    ),
    max_leaves=12,
)


def outcome(text: str, properties: Mapping[str, str]) -> Outcome:
    try:
        return SqlFilter(text).evaluate(properties)
    except FilterEvaluationError:
        return ERROR


@given(CASES, SETS)
def test_expression_agrees_with_the_model(case: Case, properties: dict[str, str]) -> None:
    assert outcome(case.text, properties) == case.of(properties)
    assert SqlFilter(case.text).matches(properties) is (case.of(properties) is True)


@given(CASES, CASES, SETS)
def test_de_morgan_holds_with_unknown_and_errors(
    left: Case, right: Case, properties: dict[str, str]
) -> None:
    one = f"NOT ({left.text} AND {right.text})"
    other = f"(NOT {left.text}) OR (NOT {right.text})"
    assert outcome(one, properties) == outcome(other, properties)


@given(CASES, SETS)
def test_double_negation_changes_nothing(case: Case, properties: dict[str, str]) -> None:
    assert outcome(f"NOT NOT {case.text}", properties) == outcome(case.text, properties)


@given(st.lists(CASES, min_size=2, max_size=6), st.sampled_from(["AND", "OR"]), SETS)
def test_chain_equals_its_nested_form(
    cases: list[Case], word: str, properties: dict[str, str]
) -> None:
    nested = cases[0].text
    for case in cases[1:]:
        nested = f"({nested} {word} {case.text})"
    chain = f" {word} ".join(case.text for case in cases)
    assert outcome(chain, properties) == outcome(nested, properties)
    assert SqlFilter(chain).text == SqlFilter(nested).text


@given(st.text() | st.text(alphabet="ab01.'()=<>,+-*/ \nANDORTINUL$_eE"))
def test_random_text_raises_only_a_syntax_error(text: str) -> None:
    position = 0
    try:
        SqlFilter(text).matches({"a": "1", "b": text})
    except FilterSyntaxError as error:
        position = error.position
    assert 0 <= position <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1_000 + "a" + ")" * 1_000,
        "NOT " * 1_000 + "a",
        "- " * 1_000 + "1 = 1",
        "a = 1" + " = TRUE" * 1_000,
        "a" + " IS NULL" * 1_000,
    ],
    ids=["parentheses", "NOT", "minus", "equals", "IS NULL"],
)
def test_too_deep_expression_is_refused_with_the_limit(text: str) -> None:
    with pytest.raises(FilterSyntaxError, match=f"more than {DEPTH_MAX}"):
        SqlFilter(text)


def test_expression_of_the_largest_depth_and_a_long_chain_are_evaluated() -> None:
    deep = "(" * DEPTH_MAX + "a = 1" + ")" * DEPTH_MAX
    assert SqlFilter(deep).matches({"a": "1"})
    assert SqlFilter("NOT " * (DEPTH_MAX - 2) + "(a = 1)").matches({"a": "1"})
    assert SqlFilter("a = 1" + " OR a = 1" * 900).matches({"a": "1"})


def test_too_long_expression_is_refused() -> None:
    with pytest.raises(FilterSyntaxError, match=f"at most {LENGTH_MAX}"):
        SqlFilter("a = '" + "x" * LENGTH_MAX + "'")


@pytest.mark.parametrize(
    ("text", "remedy", "position"),
    [
        ("a != 1", "write <>", 2),
        ('a = "x"', "single quotes", 4),
        ("a = 1 && b = 2", "write AND", 6),
        ("a = 'x", "with a single quote", 4),
        ("a =", "found the end", 3),
        ("a = 0.0", "write the integer 0", 4),
        ("a = NULL", "write IS NULL", 2),
        ("b > 'x'", "only numbers", 2),
        ("a BETWEEN 5 AND 0", "write the smaller limit first", 2),
        ("1 + a", "neither true nor false", 0),
    ],
)
def test_syntax_error_has_a_position_and_a_remedy(text: str, remedy: str, position: int) -> None:
    with pytest.raises(FilterSyntaxError, match=remedy) as caught:
        SqlFilter(text)
    assert caught.value.position == position


@pytest.mark.parametrize("text", ["a = 1)", "b LIKE 'x'", "a + 1 = 2", "a = 07", "a = 1 b"])
def test_check_sql_refuses_text_that_brokers_ignore(text: str) -> None:
    assert compile_sql(text).ignored_at is not None
    with pytest.raises(FilterSyntaxError, match="ignores the text behind"):
        check_sql(text)


@pytest.mark.parametrize("length", [10, CACHED_LENGTH_MAX])
def test_compiled_expressions_are_cached_up_to_the_limit(length: int) -> None:
    texts = [f"a = '{'x' * length}{number}'" for number in range(CACHED_MAX + 1)]
    first = compile_sql(texts[0])
    assert compile_sql(texts[0]) is first
    for text in texts[1:]:
        compile_sql(text)
    assert compile_sql(texts[0]) is not first


@given(st.integers(-(2**70), 2**70))
def test_integers_out_of_range_are_refused(number: int) -> None:
    for read, bits in ((parse_int, 31), (parse_long, 63)):
        if -(1 << bits) <= number < 1 << bits:
            assert read(str(number)) == number
        else:
            with pytest.raises(FilterEvaluationError):
                read(str(number))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1d", 1.0),
        ("1.5F", 1.5),
        (" 7\n", 7.0),
        ("-Infinity", -math.inf),
        ("1e999", math.inf),
        ("0x1p3", 8.0),
        ("-0x1.8p1d", -3.0),
        ("0x1p99999", math.inf),
    ],
)
def test_doubles_are_read_as_java_reads_them(text: str, number: float) -> None:
    assert parse_double(text) == number


@pytest.mark.parametrize(
    "text", ["", " ", "inf", "nan", "1_0", "0x10", "1e", ".", "٣", "+-1", "1 2"]
)
def test_text_that_java_refuses_as_a_double_is_refused(text: str) -> None:
    with pytest.raises(FilterEvaluationError):
        parse_double(text)


@pytest.mark.parametrize(("text", "number"), [("+5", 5), ("٣", 3), ("0" * 5000 + "1", 1)])
def test_integers_are_read_as_java_reads_them(text: str, number: int) -> None:
    assert parse_int(text) == number


@pytest.mark.parametrize("text", ["", "-", "1_0", " 1", "1L", "\U0001d7cf", "²"])
def test_text_that_java_refuses_as_an_integer_is_refused(text: str) -> None:
    with pytest.raises(FilterEvaluationError):
        parse_int(text)


@pytest.mark.parametrize(
    ("constant", "is_read"), [("2147483647", False), ("2147483648", True), ("2147483648L", True)]
)
def test_property_is_parsed_with_the_width_of_the_compared_constant(
    constant: str, *, is_read: bool
) -> None:
    compiled = SqlFilter(f"a <> {constant}")
    assert compiled.matches({"a": "2147483646"})
    assert compiled.matches({"a": "2147483649"}) is is_read


@pytest.mark.parametrize("expression", ["TRUE = b", "(a > 1) = b", "(a > 1) <> 'true'"])
def test_boolean_on_the_left_of_a_text_has_no_result(
    expression: str,
) -> None:
    with pytest.raises(FilterEvaluationError, match="write the text on the left"):
        SqlFilter(expression).evaluate({"a": "2", "b": "true"})
    assert SqlFilter("b = (a > 1)").matches({"a": "2", "b": "true"})


def test_integer_and_double_are_compared_as_doubles() -> None:
    assert SqlFilter("a BETWEEN 9007199254740993 AND 9007199254740992.0").matches({"a": "no"}) is (
        False
    )
    with pytest.raises(FilterSyntaxError, match="write the smaller limit first"):
        SqlFilter("a BETWEEN 9007199254740993 AND 9007199254740990.0")


def test_doubles_are_ordered_as_java_orders_them() -> None:
    ordered = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    for at, one in enumerate(ordered):
        for place, other in enumerate(ordered):
            assert compare_doubles(one, other) == (at > place) - (at < place)
