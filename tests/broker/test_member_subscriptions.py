"""Members of a group with different subscriptions, which lose messages, are reported."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kourou.broker.member_subscriptions import MemberSubscriptions
from kourou.filter.tags import parse_tags
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording


def update(subscriptions: MemberSubscriptions, member: str, **tags_by_topic: str) -> None:
    subscriptions.update(
        "g", member, member, [parse_tags(topic, tags, 1) for topic, tags in tags_by_topic.items()]
    )


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "subscription." in one.getMessage()]


def test_differing_subscriptions_are_logged_once_with_their_members(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subscriptions = MemberSubscriptions()
    with caplog.at_level(logging.INFO):
        update(subscriptions, "a", T="x")
        update(subscriptions, "b", T="x")
        assert subscriptions.differences() == []
        assert logged(caplog) == []
        for _ in range(5):
            update(subscriptions, "c", T="y", U="*")
            update(subscriptions, "a", T="x")
    assert subscriptions.differences() == [
        "T: 'x' by a b, 'y' by c",
        "U: '*' by c, not subscribed by a b",
    ]
    (text,) = logged(caplog)
    assert text.startswith("subscription.inconsistent group=g")
    assert "T: 'x' by a b, 'y' by c; U: '*' by c" in text


def test_agreement_of_the_members_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    subscriptions = MemberSubscriptions()
    with caplog.at_level(logging.INFO):
        update(subscriptions, "a", T="x")
        update(subscriptions, "b", T="y")
        subscriptions.remove("g", "b")
        update(subscriptions, "b", T="y")
        update(subscriptions, "a", T="y")
    assert [text.split()[0] for text in logged(caplog)] == [
        "subscription.inconsistent",
        "subscription.consistent",
    ] * 2


def test_a_third_variant_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    subscriptions = MemberSubscriptions()
    with caplog.at_level(logging.WARNING):
        for member, tags in (("a", "x"), ("b", "y"), ("c", "y"), ("d", "z")):
            update(subscriptions, member, T=tags)
    assert len(logged(caplog)) == 2


def test_retry_topics_are_ignored() -> None:
    subscriptions = MemberSubscriptions()
    subscriptions.update("g", "a", "a", [parse_tags("T", "*", 1), parse_tags("%RETRY%g", "*", 1)])
    update(subscriptions, "b", T="*")
    assert subscriptions.differences() == []


def test_the_report_limits_members_and_expression_lengths() -> None:
    subscriptions = MemberSubscriptions()
    for number in range(10):
        update(subscriptions, f"m{number}", T="x")
    update(subscriptions, "odd", T="y" * 1000)
    (text,) = subscriptions.differences()
    assert "'x' by m0 m1 m2 and 7 more" in text
    assert len(text) < 250


class Members(RuleBasedStateMachine):
    """Compares with a dictionary of each member's last subscriptions."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriptions = MemberSubscriptions()
        self.model: dict[int, str] = {}

    @rule(member=st.integers(0, 4), tags=st.sampled_from(["a", "b", "c"]))
    def heartbeat(self, member: int, tags: str) -> None:
        self.subscriptions.update("g", member, str(member), [parse_tags("T", tags, 1)])
        self.model[member] = tags

    @rule(member=st.integers(0, 4))
    def leave(self, member: int) -> None:
        self.subscriptions.remove("g", member)
        self.model.pop(member, None)

    @invariant()
    def differs_when_they_do(self) -> None:
        found = self.subscriptions.differences()
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
    assert len([text for text in logged(caplog) if "inconsistent" in text]) == 1
