"""Tests of `kourou cluster elect`: which replica, and what an unclean election loses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kourou.cli.cluster_elect import (
    LogState,
    Loss,
    ask_logs,
    best_in_sync,
    choose,
    expect_loss,
    loss_lines,
)
from kourou.cli.controlled_sets import ControlledSet, find_set
from kourou.client.administration.admin import AdminClient
from kourou.errors import NoRouteError, UsageError
from kourou.protocol.controller.headers import EpochEntry, ReplicaIdentity, ReplicasInfo
from kourou.testing.loop import run_virtual
from kourou.testing.process import Outcome
from tests.broker.controlling.controlled_cluster import CONTROLLER, NAMESRV, ControlledCluster


def replica(broker_id: int, epoch: int, end: int, *, answers: bool = True) -> LogState:
    """Return a log whose epoch 2 began at 500, if it answers."""
    epochs = (EpochEntry(1, 0, 500), EpochEntry(2, 500))[:epoch] if answers else ()
    address = f"h:{broker_id}"
    return LogState(
        broker_id=broker_id, address=address, epoch=epoch, end=end, epochs=epochs, answers=answers
    )


def test_replica_with_the_newest_epoch_and_longest_log_is_chosen() -> None:
    logs = [replica(1, 2, 999, answers=False), replica(2, 1, 900), replica(3, 2, 600)]

    assert choose(logs, None).broker_id == 3
    assert choose(logs, 2).broker_id == 2
    with pytest.raises(UsageError, match="replica 1 does not answer: start it first"):
        choose(logs, 1)
    with pytest.raises(UsageError, match="no replica answers"):
        choose(logs[:1], None)


@pytest.mark.parametrize(
    ("chosen", "other", "loss"),
    [
        (replica(2, 2, 700), replica(1, 2, 900), Loss(bytes=200, known_end=900)),
        (replica(2, 2, 900), replica(1, 2, 700), Loss(bytes=0, known_end=900)),
        (replica(2, 1, 800), replica(1, 2, 900), Loss(bytes=400, known_end=900)),
        (replica(2, 1, 400), replica(1, 2, 900), Loss(bytes=500, known_end=900)),
        (
            replica(2, 2, 700),
            replica(1, 2, 900, answers=False),
            Loss(bytes=200, known_end=900),
        ),
        (
            replica(2, 1, 950),
            replica(1, 2, 900, answers=False),
            Loss(bytes=0, known_end=900, unknown=(1,)),
        ),
    ],
)
def test_loss_is_what_the_longest_known_log_has_more(
    chosen: LogState, other: LogState, loss: Loss
) -> None:
    assert expect_loss(chosen, [chosen, other], [1]) == loss


def test_replica_in_sync_of_which_nothing_is_known_is_named() -> None:
    chosen = replica(2, 1, 400)
    loss = expect_loss(chosen, [chosen], [1])

    assert loss == Loss(bytes=0, known_end=400, unknown=(1,))
    text = " ".join(loss_lines("a", chosen, loss))
    assert "The log of replica 1 is not known well enough" in text
    assert "At least 1,200 bytes of the log are lost" in " ".join(
        loss_lines("a", chosen, Loss(bytes=1200, known_end=1600))
    )


def test_refusal_by_the_controllers_is_shown_before_the_loss() -> None:
    chosen = replica(2, 1, 400)
    lines = loss_lines("a", chosen, Loss(bytes=0, known_end=400), "the state is older")

    assert lines[0] == "Refused by the controllers: the state is older."


def in_sync(*alive: int, master: int | None = 1) -> ControlledSet:
    """Return a set of the replicas 1 to 3, of which 1 and 2 are in sync."""
    replicas = [
        ReplicaIdentity("a", id_, f"h:{id_}", id_ in alive, 4, 10 * id_) for id_ in (1, 2, 3)
    ]
    info = ReplicasInfo(master, f"h:{master}", 4, 1, tuple(replicas[:2]), tuple(replicas[2:]))
    return ControlledSet(controllers="h:9", info=info)


def test_another_replica_in_sync_is_elected() -> None:
    assert best_in_sync(in_sync(1, 2, 3), "a", None) == 2
    assert best_in_sync(in_sync(1, 2, 3), "a", 1) == 1
    with pytest.raises(UsageError, match="replica 3 of a is not in sync and alive; those that are"):
        best_in_sync(in_sync(1, 2, 3), "a", 3)
    with pytest.raises(UsageError, match="no other replica of a is in sync and alive: wait"):
        best_in_sync(in_sync(1, 3), "a", None)
    with pytest.raises(UsageError, match="or see --unclean"):
        best_in_sync(in_sync(3, master=None), "a", None)


def test_logs_of_lost_replicas_are_known_by_their_last_heartbeats() -> None:
    async def main() -> None:
        async with ControlledCluster(2) as cluster:
            for index in range(2):
                await cluster.start(index)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)
            await cluster.create_topic()
            await asyncio.sleep(1)  # longer than the pause between heartbeats
            async with AdminClient(NAMESRV, runtime=cluster.runtime) as admin:
                found = await find_set(admin, "broker-a", "")
                both = await ask_logs(admin, found)
                await cluster.kill(0)
                lost = await ask_logs(admin, await find_set(admin, "broker-a", CONTROLLER))
                with pytest.raises(NoRouteError, match="registered brokers: broker-a"):
                    await find_set(admin, "other", "")
                with pytest.raises(UsageError, match="do not know the broker set other"):
                    await find_set(admin, "other", CONTROLLER)
        assert found.controllers == CONTROLLER
        assert [(one.broker_id, one.answers, one.epoch) for one in both] == [
            (1, True, 1),
            (2, True, both[1].epoch),
        ]
        assert [(one.broker_id, one.answers) for one in lost] == [(1, False), (2, True)]
        assert lost[0].end == both[0].end

    run_virtual(main())


def test_cluster_without_controllers_is_refused(
    tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    outcome = command("cluster", "elect", "broker-a", "--dir", str(tmp_path))

    assert outcome.code == 2
    assert "has no cluster: name the --dir of a `kourou cluster`" in outcome.err
