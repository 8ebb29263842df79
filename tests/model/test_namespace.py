"""Names are put into a namespace and taken out of it as in Java."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import ConfigError
from kourou.model.namespace import check_namespace, namespace_of, with_namespace, without_namespace
from kourou.model.topic import dlq_topic, retry_topic

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
CASES = [
    case
    for case in json.loads((VECTORS / "names.json").read_text())["namespaces"]
    if case["resource"] is not None
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['namespace']}-{case['resource']}")
def test_names_equal_javas(case: dict[str, Any]) -> None:
    namespace, name = case["namespace"] or "", case["resource"]
    assert with_namespace(namespace, name) == case["wrapped"]
    assert without_namespace(namespace, name) == case["unwrapped_of"]
    assert namespace_of(name) == case["namespace_of"]
    assert without_namespace(namespace_of(name), name) == case["unwrapped"]
    if name:
        assert retry_topic(with_namespace(namespace, name)) == case["wrapped_retry"]


NAMESPACES = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
NAMES = st.from_regex(r"[a-zA-Z0-9_|-]{1,20}", fullmatch=True)


@given(NAMESPACES, NAMES)
def test_name_without_its_namespace_is_the_original(namespace: str, name: str) -> None:
    for one in (name, retry_topic(name), dlq_topic(name)):
        within = with_namespace(namespace, one)
        assert without_namespace(namespace, within) == one
        assert with_namespace(namespace, within) == within


def test_name_of_another_namespace_is_unchanged() -> None:
    assert without_namespace("a", "b%T") == "b%T"


def test_topics_of_a_cluster_have_no_namespace() -> None:
    assert with_namespace("ns", "DefaultCluster_REPLY_TOPIC") == "DefaultCluster_REPLY_TOPIC"


@pytest.mark.parametrize("name", ["a%b", "a b", "\u00fc", "a|b"])
def test_invalid_namespace_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        check_namespace(name)
    check_namespace("")
    check_namespace("MQ_INST_1-x")
