"""A message is stored in its own queue, or in that of its delay level until it is due."""

from __future__ import annotations

import pytest

from kourou.broker.writing.placement import Placement, choose_placement, has_timer
from kourou.errors import MessageIllegalError

LEVELS = 18


def test_a_message_without_delay_is_stored_in_its_own_queue() -> None:
    properties = {"TAGS": "TagA", "DELAY": "0"}

    assert choose_placement("T", 3, properties, LEVELS) == Placement("T", 3)
    assert properties == {"TAGS": "TagA", "DELAY": "0"}


def test_a_delayed_message_is_stored_in_the_queue_of_its_level_with_its_destination() -> None:
    properties = {"TAGS": "TagA", "DELAY": "3", "TIMER_DELAY_SEC": "5"}

    placement = choose_placement("T", 3, properties, LEVELS)

    assert placement == Placement("SCHEDULE_TOPIC_XXXX", 2)
    assert properties == {"TAGS": "TagA", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "3"}


def test_a_level_above_the_highest_is_the_highest() -> None:
    properties = {"DELAY": "99"}

    assert choose_placement("T", 0, properties, LEVELS).queue_id == 17
    assert properties["DELAY"] == "18"


@pytest.mark.parametrize("text", ["x", "", "1.5", "9" * 5000, "1_0", "٣"])
def test_a_level_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(MessageIllegalError, match="DELAY"):
        choose_placement("T", 0, {"DELAY": text}, LEVELS)


def test_a_timer_counts_only_without_a_delay_level() -> None:
    assert has_timer({"TIMER_DELIVER_MS": "5"})
    assert has_timer({"TIMER_DELAY_MS": "5", "DELAY": "0"})
    assert has_timer({"TIMER_DELAY_MS": "5", "TIMER_OUT_MS": "1"})
    assert not has_timer({"TIMER_OUT_MS": "1"})
    assert not has_timer({"TIMER_DELAY_SEC": "5", "DELAY": "1"})
    assert not has_timer({"TAGS": "a"})
