"""Runs a broker on a damaged store, and judges its behaviour.

`observe` starts a broker on the disk and records its answers: every message of every queue, every
table, its log entries, and the findings of a check after it was stopped. `judge_messages` and
`judge_tables` compare these with the test's ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from kourou.errors import KourouError
from kourou.model.message import MessageExt
from kourou.protocol import fastjson
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import request
from kourou.store.tools.check import check_store
from kourou.store.tools.rebuild import rebuild
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from tests.torture.broker_connection import BrokerConnection, QueueContents
from tests.torture.filled import ALL_QUEUES, WAITING_S, SentMessage, filled, served, warnings
from tests.torture.images import File, disk_of

WRONG: Final = "wrong bytes served"
LOST: Final = "undamaged messages not served"
REFUSED: Final = "starts refused"
UNSAID: Final = "damage not reported by name"
SKIPPED: Final = "damage skipped without the option"
BLOCKED: Final = "damage not skipped with the option"
UNFOUND: Final = "messages not found by key after check and rebuild"
TABLE: Final = "config neither the last nor, with a log entry, the one before"
DAMAGE: Final = "findings of store check after the run"
CRASHED: Final = "other errors"

TABLES: Final = {
    "config/topics.json": RequestCode.GET_ALL_TOPIC_CONFIG,
    "config/consumerOffset.json": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "config/delayOffset.json": RequestCode.GET_ALL_DELAY_OFFSET,
    "config/subscriptionGroup.json": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
}
_VERSION_KEYS: Final = ("dataVersion", "kourouSeal", "pullOffsetTable")
DELAYED: Final = ("late", 0)
SKIPPED_WITHIN_S: Final = 90
INDEXED_WITHIN_S: Final = 5


@dataclass
class Observation:
    """Recorded behaviour of a broker.

    Attributes:
        refusal: the error of its start; empty if it started.
        held: its answers for each queue.
        skipping: the same, with the option to skip damage.
        found: the messages found by topic and key.
        tables: the broker's tables, by config file.
        warnings: its log entries.
        findings: (file, description) of each finding of the check after its stop.
    """

    refusal: str = ""
    held: dict[tuple[str, int], QueueContents] = field(default_factory=dict)
    skipping: dict[tuple[str, int], QueueContents] = field(default_factory=dict)
    found: dict[tuple[str, str], list[MessageExt]] = field(default_factory=dict)
    tables: dict[str, object] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    findings: list[tuple[str, str]] = field(default_factory=list)

    def reports(self, name: str) -> bool:
        """Tell whether a log entry or an answer of the broker names the file."""
        texts = [*self.warnings, self.refusal]
        texts += [text for held in self.held.values() for text in held.refused.values()]
        return any(name in text for text in texts)


def observe(
    disk: SimDisk, *, until_due: bool = False, skips: bool = False, queries: bool = False
) -> Observation:
    """Start a broker on the disk, read all, stop it, and check the files.

    Args:
        disk: holds the store, which the broker changes.
        until_due: first wait until all delayed messages are due.
        skips: afterwards set the option to skip damage, and read all again.
        queries: query each message by its key.
    """
    seen = Observation()

    async def main() -> None:
        try:
            async with served(disk) as connection:
                if until_due:
                    await asyncio.sleep(WAITING_S)
                for queue in ALL_QUEUES:
                    seen.held[queue] = await connection.read(*queue)
                if skips:
                    await connection.configure("skipDamagedRecords=true")
                    await asyncio.sleep(SKIPPED_WITHIN_S)
                    for queue in ALL_QUEUES:
                        seen.skipping[queue] = await connection.read(*queue)
                if queries:
                    await _query_all(connection, seen)
                for name, code in TABLES.items():
                    seen.tables[name] = await _table(connection, code)
        except (KourouError, OSError) as error:
            seen.refusal = f"{type(error).__name__}: {error}"

    with warnings() as texts:
        run_virtual(main())
        seen.warnings = texts
        if not seen.refusal:
            seen.findings = findings_of(disk)
    return seen


def findings_of(disk: SimDisk) -> list[tuple[str, str]]:
    """Return (file, description) of each finding of a check."""
    found = check_store(disk).findings
    return [(each.file, f"{each.file} at {each.offset}: {each.problem}") for each in found]


def after_rebuild(disk: SimDisk) -> list[tuple[str, str]]:
    """Rebuild the derived files, and return the findings of a check."""
    with warnings():
        rebuild(disk, EPOCH_MS + 10**9, pid=1)
    return findings_of(disk)


async def _query_all(connection: BrokerConnection, seen: Observation) -> None:
    """Query each message by its key, after the index had time to follow the log."""
    await asyncio.sleep(INDEXED_WITHIN_S)
    for (topic, _, _), sent in filled().messages.items():
        seen.found[topic, sent.key] = await connection.query(topic, sent.key)


async def _table(connection: BrokerConnection, code: int) -> object:
    answer = await connection.ask(request(code))
    if answer.code != ResponseCode.SUCCESS:
        return f"code {answer.code}: {answer.remark}"
    return _plain(fastjson.loads(answer.body, bare_keys_bytes_max=1 << 20))


def _plain(value: Any) -> Any:
    """Return a table without the members that each save and each pull changes."""
    if isinstance(value, dict):
        return {name: _plain(held) for name, held in value.items() if name not in _VERSION_KEYS}
    return value


@cache
def undamaged(name: str | None = None, *, is_closed: bool) -> Observation:
    """Return the behaviour on the undamaged store, or with the file replaced by its backup."""
    image = dict(filled().closed if is_closed else filled().killed)
    if name is not None and f"{name}.bak" in image:
        image[name] = image[f"{name}.bak"]
        del image[f"{name}.bak"]
    return observe(disk_of(image))


def judge_tables(
    seen: Observation, image: Mapping[str, File], name: str
) -> Iterator[tuple[str, str]]:
    """Yield problems of the tables after the file `name` was damaged."""
    is_closed = "abort" not in image
    for table, held in seen.tables.items():
        if held == undamaged(is_closed=is_closed).tables[table]:
            continue
        main = name.removesuffix(".bak")
        if main == table and held == undamaged(main, is_closed=is_closed).tables[table]:
            if not seen.reports(main):
                yield UNSAID, f"{table} is the one before, and nothing reports so"
            continue
        yield TABLE, f"{table} reports other things"


def judge_messages(
    seen: Observation, damaged_keys: Collection[str], *, is_closed: bool, until_due: bool
) -> Iterator[tuple[str, str]]:
    """Yield problems of the messages; those of `damaged_keys` may be missing."""
    for (topic, queue_id), held in seen.held.items():
        yield from ((WRONG, f"{topic}/{queue_id}: {text}") for text in held.malformed.values())
        for offset, message in held.messages.items():
            expected = _expected(topic, queue_id, offset, message)
            if expected is None or not expected.is_of(message):
                yield WRONG, f"{topic}/{queue_id} at {offset}: {message.body[:40]!r}"
            elif message.properties != _properties(message, is_closed=is_closed):
                yield WRONG, f"{topic}/{queue_id} at {offset}: {message.properties}"
    # `judge_tables` decides whether a topic may be missing.
    known = topics_of(seen)
    all_told = [item for item in filled().messages.items() if item[0][0] in known]
    for (topic, queue_id, offset), sent in all_told:
        held = seen.held[topic, queue_id]
        is_there = offset in held.messages or offset in held.malformed
        if not is_there and sent.key not in damaged_keys:
            yield LOST, f"{topic}/{queue_id} at {offset}: {held.refused.get(offset, 'not there')}"
    if until_due:
        held = (seen.skipping or seen.held)[DELAYED]
        arrived = {key for message in held.messages.values() for key in message.keys}
        for key in filled().delayed.keys() - arrived - set(damaged_keys):
            yield LOST, f"{key} never arrived, {held.refused}"


def topics_of(seen: Observation) -> Collection[str]:
    """Return the broker's topics."""
    table = seen.tables["config/topics.json"]
    assert isinstance(table, dict)
    return set(table["topicConfigTable"])


def judge_queries(seen: Observation) -> Iterator[tuple[str, str]]:
    """Yield keys that find messages without this key, or do not find their messages.

    Java's layout of an index file has no checksum: a message in a damaged index may not be found
    by its key until a check has reported the damage and a rebuild has repaired the index.
    """
    for (topic, key), messages in seen.found.items():
        sent = filled().messages.items()
        expected = [each.body for place, each in sent if (place[0], each.key) == (topic, key)]
        given = [message.body for message in messages]
        if set(given) - set(expected) or len(set(given)) < len(given):
            yield WRONG, f"by key {key} of {topic}: {given}"
        elif len(given) < len(expected):
            yield UNFOUND, f"{topic}, {key}: {len(given)} in place of {len(expected)}"


def judge_skips(seen: Observation) -> Iterator[tuple[str, str]]:
    """Yield queues in which damage was skipped without the option, or not skipped with it."""
    for (topic, queue_id), held in seen.held.items():
        last = max(held.messages, default=-1)
        gone = set(range(last)) - held.messages.keys() - held.refused.keys()
        if gone - held.malformed.keys():
            yield SKIPPED, f"{topic}/{queue_id}: {sorted(gone)} are stepped over"
    for (topic, queue_id), held in seen.skipping.items():
        errors = {at: text for at, text in held.refused.items() if not text.startswith("code ")}
        if errors:
            yield BLOCKED, f"{topic}/{queue_id}: {errors}"


def _expected(topic: str, queue_id: int, offset: int, message: MessageExt) -> SentMessage | None:
    if (topic, queue_id) == DELAYED:
        return filled().delayed.get("".join(message.keys))
    return filled().messages.get((topic, queue_id, offset))


def _properties(message: MessageExt, *, is_closed: bool) -> dict[str, str]:
    """Return the message's properties in the undamaged store; delayed messages have new ones."""
    queue = message.topic, message.queue_id
    if queue == DELAYED:
        return message.properties
    return undamaged(is_closed=is_closed).held[queue].messages[message.queue_offset].properties
