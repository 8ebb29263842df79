"""Members of a group with different subscriptions, which lose messages, are reported."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kourou.broker.subscription_kinds import SubscriptionKinds
from kourou.filter.tags import parse_tags
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording


def note(kinds: SubscriptionKinds, member: str, **wanted: str) -> None:
    kinds.note("g", member, member, [parse_tags(topic, tags, 1) for topic, tags in wanted.items()])


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if "subscription." in one.message]


def test_differing_subscriptions_are_logged_once_with_their_members(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kinds = SubscriptionKinds()
    with caplog.at_level(logging.INFO):
        note(kinds, "a", T="x")
        note(kinds, "b", T="x")
        assert kinds.differences() == []
        assert told(caplog) == []
        for _ in range(5):
            note(kinds, "c", T="y", U="*")
            note(kinds, "a", T="x")
    assert kinds.differences() == ["T: 'x' by a b, 'y' by c", "U: '*' by c, not subscribed by a b"]
    (text,) = told(caplog)
    assert text.startswith("subscription.inconsistent group=g")
    assert "T: 'x' by a b, 'y' by c; U: '*' by c" in text


def test_agreement_of_the_members_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    kinds = SubscriptionKinds()
    with caplog.at_level(logging.INFO):
        note(kinds, "a", T="x")
        note(kinds, "b", T="y")
        kinds.forget("g", "b")
        note(kinds, "b", T="y")
        note(kinds, "a", T="y")
    assert [text.split()[0] for text in told(caplog)] == [
        "subscription.inconsistent",
        "subscription.consistent",
    ] * 2


def test_a_third_kind_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    kinds = SubscriptionKinds()
    with caplog.at_level(logging.WARNING):
        for member, tags in (("a", "x"), ("b", "y"), ("c", "y"), ("d", "z")):
            note(kinds, member, T=tags)
    assert len(told(caplog)) == 2


def test_retry_topics_are_ignored() -> None:
    kinds = SubscriptionKinds()
    kinds.note("g", "a", "a", [parse_tags("T", "*", 1), parse_tags("%RETRY%g", "*", 1)])
    note(kinds, "b", T="*")
    assert kinds.differences() == []


def test_the_report_limits_members_and_expression_lengths() -> None:
    kinds = SubscriptionKinds()
    for number in range(10):
        note(kinds, f"m{number}", T="x")
    note(kinds, "odd", T="y" * 1000)
    (text,) = kinds.differences()
    assert "'x' by m0 m1 m2 and 7 more" in text
    assert len(text) < 250


class Members(RuleBasedStateMachine):
    """Compares with a dictionary of each member's last subscriptions."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = SubscriptionKinds()
        self.model: dict[int, str] = {}

    @rule(member=st.integers(0, 4), tags=st.sampled_from(["a", "b", "c"]))
    def heartbeat(self, member: int, tags: str) -> None:
        self.kinds.note("g", member, str(member), [parse_tags("T", tags, 1)])
        self.model[member] = tags

    @rule(member=st.integers(0, 4))
    def leave(self, member: int) -> None:
        self.kinds.forget("g", member)
        self.model.pop(member, None)

    @invariant()
    def differs_when_they_do(self) -> None:
        found = self.kinds.differences()
        assert len(found) == (len(set(self.model.values())) > 1)
        for tags, count in Counter(self.model.values()).items() if found else ():
            by = found[0].partition(f"'{tags}' by ")[2].partition(",")[0].split()
            assert len(by) in (count, 6), "named, or so many and others"


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=50, deadline=None)


def test_differences_are_reported_to_administrators_until_the_members_agree(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.admin() as admin:
            right = w.consumer(tags="a", instance_name="right")
            wrong = w.consumer(tags="b", instance_name="wrong")
            async with right:
                assert (await admin.describe_group("consumers")).differences == ()
                async with wrong:
                    await asyncio.sleep(70)
                    (text,) = (await admin.describe_group("consumers")).differences
                    assert text.startswith(f"{TOPIC}: 'a' by ")
                    assert wrong.client_id in text.partition("'b' by ")[2]
                    found = await admin.consumer_connection("consumers")
                    assert found.differences == (text,)
                assert (await admin.describe_group("consumers")).differences == ()

    with caplog.at_level(logging.WARNING):
        run_virtual(main())
    assert len([text for text in told(caplog) if "inconsistent" in text]) == 1
