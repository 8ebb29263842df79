"""What the ledger, and all that is stored in the end, say of a broker that was killed so often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from kourou import MessageExt, PullConsumer
from tests.torture.chaos.consumers import DISORDER
from tests.torture.chaos.ledger import (
    GROUPS,
    MIXED,
    ORDERS,
    TAKERS,
    TRIES_MAX,
    Ledger,
    body_of,
    fails,
    fails_once,
    is_committed,
    is_poison,
    key_of,
    kind,
    wants,
)
from tests.torture.chaos.remade import REVIVED, STALE, RemadeTopic

LOST: Final = "acknowledged, and not given to a group"
UNWANTED: Final = "rolled back, taken back or not chosen, and given"
TWICE: Final = "stored more often than sent"
EARLY: Final = "given before its time"
DEAD: Final = "dead letters that are none, or missing"
STRANGE: Final = "bytes that nobody sent"
TRACED: Final = "tracebacks"
DAMAGE: Final = "findings of store check, and holes"
LATE: Final = "given long after its time"
LATE_MS_MAX: Final = 30_000
"""Beyond what the broker was away."""
AWAY: Final = "away by ms, at most"
FIGURES: Final = (
    *(LOST, UNWANTED, TWICE, EARLY, LATE, DISORDER, DEAD, STRANGE, TRACED, DAMAGE),
    *(REVIVED, STALE),
)


def waits_for_clock(key: str, ledger: Ledger) -> bool:
    """Return whether the broker computes a time for the message by its wall clock."""
    return key in ledger.due_ms or fails(key, 0) or fails_once(key)


def judge_stuck(ledger: Ledger) -> None:
    """See that nothing is missing but what waits for a time; the broker's clock has jumped."""
    for group, missing in ledger.missing.items():
        for key in missing:
            if not waits_for_clock(key, ledger):
                ledger.fail(LATE, f"{key} to {group} waits for the clock of the broker")


async def stored(namesrv: str, topic: str, ledger: Ledger) -> list[MessageExt]:
    """Return all messages of a topic, queue by queue."""
    messages: list[MessageExt] = []
    async with PullConsumer("readers", namesrv) as reader:
        for queue in await reader.fetch_subscribe_message_queues(topic):
            at, end = await reader.min_offset(queue), await reader.max_offset(queue)
            if at:
                ledger.fail(DAMAGE, f"{queue} begins at {at}: messages have expired")
            while at < end:
                result = await reader.pull(queue, at)
                offsets = [message.queue_offset for message in result.messages]
                if offsets != list(range(at, result.next_offset)) or not offsets:
                    ledger.fail(DAMAGE, f"{queue} at {at}: {result.status}, {offsets}")
                    break
                messages += result.messages
                at = result.next_offset
    return messages


def judge_deliveries(ledger: Ledger) -> None:
    """Compare what came with what was promised."""
    for group, missing in ledger.missing.items():
        for key in sorted(missing):
            ledger.fail(LOST, f"{key} to {group}, which got {ledger.seen[group].get(key, [])}")
    for group, seen in ledger.seen.items():
        for key, arrivals in seen.items():
            if key not in ledger.begun:
                ledger.fail(STRANGE, f"{group} was given {key}")
            if not may_be_seen(ledger, key) or not wants(group, key):
                ledger.fail(UNWANTED, f"{key} to {group}: {arrivals[0]}")
            early_ms = ledger.due_ms.get(key, 0) - arrivals[0].came_at_ms
            if early_ms > 0 and early_ms > ledger.jumped_ms(arrivals[0].came_at_ms):
                ledger.fail(EARLY, f"{key} to {group}, {early_ms} ms")


def may_be_seen(ledger: Ledger, key: str) -> bool:
    return key not in ledger.recalled and (kind(key) != "pay" or is_committed(key))


async def judge_stored(ledger: Ledger, namesrv: str, remade: Sequence[RemadeTopic]) -> None:
    """Look at all that is stored: what it is, how often, in which order."""
    mixed = await stored(namesrv, MIXED, ledger)
    orders = await stored(namesrv, ORDERS, ledger)
    counts = Counter(judge_body(ledger, message) for message in mixed + orders)
    for topic in remade:
        messages = await stored(namesrv, topic.name, ledger)
        counts.update(judge_body(ledger, message) for message in messages)
        topic.judge(messages)
        await topic.judge_offsets()
    ledger.counts["stored messages"] = counts.total()
    for key, count in counts.items():
        limit = ledger.tries.get(key)
        if limit is not None and count > limit:
            ledger.fail(TWICE, f"{key}: {count} times, sent {limit} times")
        if count and not may_be_seen(ledger, key):
            ledger.fail(UNWANTED, f"{key} is stored")
        if limit is not None and count > 1:
            ledger.counts["stored again by a second try"] += 1
    judge_delays(ledger, mixed)
    judge_orders(ledger, orders)
    await judge_dead_letters(ledger, namesrv)


def judge_delays(ledger: Ledger, mixed: list[MessageExt]) -> None:
    """See that delayed messages were stored when they were due, and soon after.

    If the broker's clock jumps, its times of storing tell nothing.
    """
    if ledger.clock:
        return
    late_ms_max = LATE_MS_MAX + ledger.counts[AWAY]
    delays = []
    for message in mixed:
        key = key_of(message.body)
        if key in ledger.due_ms:
            delays.append(message.store_at_ms - ledger.due_ms[key])
            if delays[-1] < 0:
                ledger.fail(EARLY, f"{key} stored {-delays[-1]} ms before its time")
            if delays[-1] > late_ms_max:
                ledger.fail(LATE, f"{key} stored {delays[-1]} ms after its time")
    if delays:
        delays.sort()
        ledger.counts["late by ms, median"] = delays[len(delays) // 2]
        ledger.counts["late by ms, at most"] = delays[-1]


def judge_body(ledger: Ledger, message: MessageExt) -> str:
    """Return the key of a message that is as it was sent."""
    key = key_of(message.body)
    if key not in ledger.begun or message.body != body_of(key) or message.keys != [key]:
        ledger.fail(STRANGE, f"{message.topic}/{message.queue_id} at {message.queue_offset}: {key}")
    return key


def judge_orders(ledger: Ledger, orders: list[MessageExt]) -> None:
    """See that each key has its messages in one queue, in the order in which they were sent.

    A send that failed may be stored late, over a connection that its producer has given up; so
    may the first try of one that was acknowledged by its second.
    """
    last: dict[str, tuple[int, int]] = {}
    seen: set[str] = set()
    for message in orders:
        key = key_of(message.body)
        if key not in ledger.acknowledged or key in seen:
            continue
        seen.add(key)
        _, order, number = key.split("-")
        queue_id, before = last.get(order, (message.queue_id, -1))
        if message.queue_id != queue_id or int(number) < before:
            text = f"key {order}: {number} in {message.queue_id} behind {before} in {queue_id}"
            ledger.fail(DISORDER, text)
        last[order] = message.queue_id, int(number)


async def judge_dead_letters(ledger: Ledger, namesrv: str) -> None:
    """Compare the dead letters of the takers with what their listeners refuse each time."""
    dead = Counter(
        judge_body(ledger, message) for message in await stored(namesrv, f"%DLQ%{TAKERS}", ledger)
    )
    ledger.counts["dead letters"] = len(dead)
    ledger.counts["dead letters, each time it was stored"] = dead.total()
    seen = ledger.seen[TAKERS]
    for key in dead:
        if not is_poison(key):
            ledger.fail(DEAD, f"{key}, which was taken in the end")
        elif not any(arrival.reconsume_times >= TRIES_MAX for arrival in seen[key]):
            ledger.fail(DEAD, f"{key}, which was not tried {TRIES_MAX} times again")
    for key, arrivals in seen.items():
        if is_poison(key) and key not in dead:
            ledger.fail(DEAD, f"{key} is missing")
        places = set()
        for arrival in arrivals:
            place = arrival.queue_id, arrival.queue_offset
            # A member that reaches no broker gives a message again by itself, and counts that, too.
            if arrival.reconsume_times > TRIES_MAX and place not in places:
                ledger.fail(DEAD, f"{key} was given again for the {arrival.reconsume_times}th time")
            places.add(place)


def judge(ledger: Ledger) -> None:
    """Count what happened."""
    ledger.counts["messages sent"] = len(ledger.begun)
    ledger.counts["messages acknowledged"] = len(ledger.acknowledged)
    ledger.counts["taken back"] = len(ledger.recalled)
    for groups in GROUPS.values():
        for group in groups:
            given = sum(len(arrivals) for arrivals in ledger.seen[group].values())
            ledger.counts[f"given to {group}"] = given
            ledger.counts[f"given to {group} again"] = given - len(ledger.seen[group])
