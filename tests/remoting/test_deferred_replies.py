"""Requests that wait for the disk are answered once, with a result or with their error."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from kourou.errors import InvalidParameterError, SystemBusyError
from kourou.protocol.command import RemotingCommand, response
from kourou.remoting.connection import Request
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer


async def answer(request: Request, gate: asyncio.Event | None = None) -> RemotingCommand:
    if gate is not None:
        await gate.wait()
    return response(request.command, 0, "done")


async def refuse() -> RemotingCommand:
    raise InvalidParameterError(29, "no such thing")


def test_the_answer_is_sent_when_the_coroutine_returns() -> None:
    async def main() -> None:
        later, peer = DeferredReplies(), FakePeer()
        gate = asyncio.Event()
        request = peer.request(36)
        later.answer(request, partial(answer, request, gate))
        await asyncio.sleep(1)
        assert peer.sent == []
        gate.set()
        await later.close()
        assert [one.remark for one in peer.sent] == ["done"]

    run_virtual(main())


def test_an_error_becomes_the_answer() -> None:
    async def main() -> None:
        later, peer = DeferredReplies(), FakePeer()
        later.answer(peer.request(36), refuse)
        await later.close()
        assert [(one.code, one.remark) for one in peer.sent] == [(29, "no such thing")]

    run_virtual(main())


def test_requests_above_the_limit_are_refused_without_being_served() -> None:
    async def main() -> None:
        later, peer = DeferredReplies(running_max=1), FakePeer()
        first, second = peer.request(36), peer.request(36)
        later.answer(first, partial(answer, first))
        with pytest.raises(SystemBusyError):
            later.answer(second, partial(answer, second))
        await later.close()
        later.answer(second, partial(answer, second))
        await later.close()
        assert len(peer.sent) == 2

    run_virtual(main())


def test_abandoned_requests_are_not_answered() -> None:
    async def main() -> None:
        later, peer = DeferredReplies(), FakePeer()
        request = peer.request(36)
        later.answer(request, partial(answer, request, asyncio.Event()))
        await asyncio.sleep(0)
        later.abandon()
        await later.close()
        assert peer.sent == []

    run_virtual(main())
