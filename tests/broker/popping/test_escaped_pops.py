"""Checkpoints of a slave's pops are stored elsewhere, all or none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.checkpoint_writer import NewCheckpoint
from kourou.broker.popping.escaped_pops import EscapedCheckpoints
from kourou.broker.popping.pop_run import PopQueue
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.testing.loop import run_virtual

TARGET = 5_002


class Elsewhere:
    """Another broker, which is its own relay, and the offsets of groups.

    Attributes:
        refused: queues whose checkpoints it refuses.
        took_s: how long it takes to store one.
    """

    def __init__(self, refused: Sequence[int] = (), took_s: float = 1) -> None:
        self.relay = self
        self.refused = refused
        self.took_s = took_s
        self.acked: list[tuple[int, Sequence[int]]] = []
        self.committed: dict[int, int] = {}

    async def choose(self) -> int:
        return TARGET

    async def put_checkpoint(self, target: int, checkpoint: PopCheckpoint) -> PutResult:
        assert target == TARGET
        await asyncio.sleep(self.took_s)
        is_refused = checkpoint.key.queue_id in self.refused
        return PutResult(PutStatus.BUSY if is_refused else PutStatus.OK)

    async def put_ack(
        self, target: int, key: CheckpointKey, offsets: Sequence[int], revive_at_ms: int
    ) -> PutResult:
        assert (target, revive_at_ms) == (TARGET, 11_000)
        self.acked.append((key.queue_id, offsets))
        return PutResult(PutStatus.OK)

    def commit(self, queue: PopQueue, offset: int) -> None:
        self.committed[queue.queue_id] = offset


def popped(queue_id: int) -> NewCheckpoint:
    key = CheckpointKey("T", "g", queue_id, 3, 1_000, "broker")
    return NewCheckpoint(PopCheckpoint(key, (3, 4), 10_000), 5)


async def opened(elsewhere: Elsewhere) -> EscapedCheckpoints:
    checkpoints = EscapedCheckpoints(elsewhere, elsewhere)  # type: ignore[arg-type]
    await checkpoints.open()
    assert checkpoints.next_queue() == TARGET
    return checkpoints


@pytest.mark.parametrize("refused", [(), (1,), (0, 1)])
def test_offsets_move_only_if_all_checkpoints_are_stored_and_the_others_are_acknowledged(
    refused: Sequence[int],
) -> None:
    async def main() -> None:
        elsewhere = Elsewhere(refused)
        checkpoints, results = await opened(elsewhere), list[PutResult]()
        checkpoints.put([popped(0), popped(1)], TARGET, results.append)
        await checkpoints.close()
        assert [result.status for result in results] == [
            PutStatus.BUSY if refused else PutStatus.OK
        ]
        assert elsewhere.committed == ({} if refused else {0: 5, 1: 5})
        assert elsewhere.acked == ([(0, (3, 4))] if refused == (1,) else [])

    run_virtual(main())


def test_the_end_waits_for_pops_under_way_and_refuses_others() -> None:
    async def main() -> None:
        elsewhere = Elsewhere()
        checkpoints, results = await opened(elsewhere), list[PutResult]()
        checkpoints.put([popped(0)], TARGET, results.append)
        ending = asyncio.create_task(checkpoints.close())
        await asyncio.sleep(0)
        checkpoints.put([popped(1)], TARGET, results.append)
        checkpoints.skip(PopQueue("T", "g", 2), 9)
        assert [result.status for result in results] == [PutStatus.SERVICE_NOT_AVAILABLE]
        await ending
        assert elsewhere.committed == {0: 5}
        assert results[1].status is PutStatus.OK

    run_virtual(main())
