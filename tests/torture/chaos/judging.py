"""Judges the ledger and the finally stored messages of a repeatedly killed broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final

from kourou import MessageExt, PullConsumer
from tests.torture.chaos.consumers import DISORDER
from tests.torture.chaos.ledger import (
    CONCURRENT,
    GROUPS,
    MIXED,
    ORDERED_POPPERS,
    ORDERS,
    POP_TOPICS,
    TRIES_MAX,
    Ledger,
    body_of,
    fails,
    fails_once,
    is_committed,
    is_poison,
    key_of,
    kind,
    must_deliver,
)
from tests.torture.chaos.ordered_pops import judge_ordered
from tests.torture.chaos.pop_ledger import BrokerHistory, PopLedger
from tests.torture.chaos.recreated import REVIVED, STALE, RecreatedTopic

LOST: Final = "acknowledged, but not delivered to a group"
UNWANTED: Final = "rolled back, recalled or filtered, but delivered"
TWICE: Final = "stored more often than sent"
EARLY: Final = "delivered before its time"
DEAD: Final = "dead letters wrong or missing"
STRANGE: Final = "bytes never sent"
TRACED: Final = "tracebacks"
DAMAGE: Final = "findings of store check, and missing offsets"
AGAIN: Final = "acknowledged by a pop consumer in time, but popped again"
VISIBLE: Final = "popped again before the end of the invisible time"
COUNTED: Final = "popped again with a retry count that had not grown"
LATE: Final = "delivered long after its time"
LATE_MS_MAX: Final = 30_000
"""Allowed delay in addition to the broker's downtime."""
AWAY: Final = "downtime in ms, at most"
FIGURES: Final = (
    *(LOST, UNWANTED, TWICE, EARLY, LATE, DISORDER, DEAD, STRANGE, TRACED, DAMAGE),
    *(REVIVED, STALE, AGAIN, VISIBLE, COUNTED),
)


def waits_for_clock(group: str, key: str, ledger: Ledger) -> bool:
    """Return whether the broker computes a due time of the message from its wall clock."""
    return group in POP_TOPICS or key in ledger.due_ms or fails(key, 0) or fails_once(key)


def judge_stuck(ledger: Ledger) -> None:
    """Record missing messages that do not wait for the broker's clock, which has jumped."""
    for group, missing in ledger.missing.items():
        for key in missing:
            if not waits_for_clock(group, key, ledger):
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
    """Compare deliveries with acknowledged messages."""
    for group, missing in ledger.missing.items():
        for key in sorted(missing):
            ledger.fail(LOST, f"{key} to {group}, which got {ledger.seen[group].get(key, [])}")
    for group, seen in ledger.seen.items():
        for key, arrivals in seen.items():
            if key not in ledger.begun:
                ledger.fail(STRANGE, f"{key} delivered to {group}")
            if not may_be_seen(ledger, key) or not must_deliver(group, key):
                ledger.fail(UNWANTED, f"{key} to {group}: {arrivals[0]}")
            early_ms = ledger.due_ms.get(key, 0) - arrivals[0].came_at_ms
            if early_ms > 0 and early_ms > ledger.jumped_ms(arrivals[0].came_at_ms):
                ledger.fail(EARLY, f"{key} to {group}, {early_ms} ms")


def may_be_seen(ledger: Ledger, key: str) -> bool:
    return key not in ledger.recalled and (kind(key) != "pay" or is_committed(key))


async def judge_stored(ledger: Ledger, namesrv: str, recreated: Sequence[RecreatedTopic]) -> None:
    """Judge all stored messages: contents, number of copies, order."""
    mixed = await stored(namesrv, MIXED, ledger)
    orders = await stored(namesrv, ORDERS, ledger)
    counts = Counter(judge_body(ledger, message) for message in mixed + orders)
    for topic in recreated:
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
    judge_pops(ledger, counts)
    judge_delays(ledger, mixed)
    judge_orders(ledger, orders)
    await judge_dead_letters(ledger, namesrv)


def judge_pops(ledger: Ledger, copies: Counter[str]) -> None:
    """Judge the pops of messages that are stored once; `copies` counts the stored messages."""
    history = BrokerHistory(
        lambda from_ms, until_ms: max(ledger.ahead_ms(from_ms, until_ms)),
        ledger.kills,
        is_clock_right=not ledger.clock,
    )
    for group, pops in ledger.pops.items():
        if group == ORDERED_POPPERS:
            found, counts = _judge_ordered(pops, history)
        else:
            found, counts = _judge_unordered(pops, history, copies)
        for figure, texts in found.items():
            for text in texts:
                ledger.fail(figure, f"{group}: {text}")
        given = chain.from_iterable(pops.deliveries.values())
        counts |= {
            "acknowledgements answered": sum(delivery.is_acked for delivery in given),
            "acknowledged messages": len(pops.acked),
            "acknowledged messages, without an answer": len(pops.ack_begun - pops.acked),
        }
        ledger.counts.update({f"{group}: {name}": count for name, count in counts.items()})


_Findings = dict[str, list[str]]
_Counts = dict[str, int]


def _judge_unordered(
    pops: PopLedger, history: BrokerHistory, copies: Counter[str]
) -> tuple[_Findings, _Counts]:
    """Return the failures by figure, and further counts."""
    found = pops.judge(history, lambda key: copies[key] == 1)
    failures = {AGAIN: found.again, VISIBLE: found.early, COUNTED: found.counts}
    counts = {
        "popped again after an acknowledgement, unavoidable": found.unavoidable,
        "popped again after an acknowledgement that was too late": found.late,
        "not judged, stored more than once": sum(copies[key] > 1 for key in pops.deliveries),
    }
    return failures, counts


def _judge_ordered(pops: PopLedger, history: BrokerHistory) -> tuple[_Findings, _Counts]:
    """Return the failures by figure, and further counts."""
    found = judge_ordered(chain.from_iterable(pops.deliveries.values()), history)
    failures = {
        DISORDER: found.disorder,
        AGAIN: found.again,
        VISIBLE: found.early,
        COUNTED: found.counts,
    }
    return failures, {"acknowledged, and popped again behind another": found.behind}


def judge_delays(ledger: Ledger, mixed: list[MessageExt]) -> None:
    """Check that delayed messages were stored soon after their due times.

    If the broker's clock jumped, store times prove nothing and are not judged.
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
    """Return the key of a message; record a failure if it differs from the sent one."""
    key = key_of(message.body)
    if key not in ledger.begun or message.body != body_of(key) or message.keys != [key]:
        ledger.fail(STRANGE, f"{message.topic}/{message.queue_id} at {message.queue_offset}: {key}")
    return key


def judge_orders(ledger: Ledger, orders: list[MessageExt]) -> None:
    """Check that the messages of each sharding key are in one queue, in the order of their sends.

    Only first copies of acknowledged messages count: a failed send may be stored late, through a
    connection that its producer has closed, and so may a first attempt whose retry was
    acknowledged.
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
            text = f"key {order}: {number} in {message.queue_id} after {before} in {queue_id}"
            ledger.fail(DISORDER, text)
        last[order] = message.queue_id, int(number)


async def judge_dead_letters(ledger: Ledger, namesrv: str) -> None:
    """Compare the concurrent group's dead letters with the keys that its listeners refuse."""
    dead = Counter(
        judge_body(ledger, message)
        for message in await stored(namesrv, f"%DLQ%{CONCURRENT}", ledger)
    )
    ledger.counts["dead letters"] = len(dead)
    ledger.counts["dead letters, each time it was stored"] = dead.total()
    seen = ledger.seen[CONCURRENT]
    for key in dead:
        if not is_poison(key):
            ledger.fail(DEAD, f"{key}, which was consumed")
        elif not any(arrival.reconsume_times >= TRIES_MAX for arrival in seen[key]):
            ledger.fail(DEAD, f"{key}, which was not redelivered {TRIES_MAX} times")
    for key, arrivals in seen.items():
        if is_poison(key) and key not in dead:
            ledger.fail(DEAD, f"{key} is missing")
        places = set()
        for arrival in arrivals:
            place = arrival.queue_id, arrival.queue_offset
            # A member without a broker redelivers a message locally, which counts too.
            if arrival.reconsume_times > TRIES_MAX and place not in places:
                ledger.fail(DEAD, f"{key} was redelivered {arrival.reconsume_times} times")
            places.add(place)


def judge(ledger: Ledger) -> None:
    """Count messages and deliveries."""
    ledger.counts["messages sent"] = len(ledger.begun)
    ledger.counts["messages acknowledged"] = len(ledger.acknowledged)
    ledger.counts["recalled"] = len(ledger.recalled)
    for groups in GROUPS.values():
        for group in groups:
            given = sum(len(arrivals) for arrivals in ledger.seen[group].values())
            ledger.counts[f"delivered to {group}"] = given
            ledger.counts[f"redelivered to {group}"] = given - len(ledger.seen[group])
