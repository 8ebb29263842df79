"""An unsuccessful response raises the error class of its code."""

from __future__ import annotations

import pytest

from kourou.errors import RemoteError, TopicNotFoundError
from kourou.protocol.command import RemotingCommand, raise_for_response
from tests.documented_errors import only_raises


def test_success_raises_nothing() -> None:
    with only_raises():
        raise_for_response(RemotingCommand(0))


def test_a_known_code_raises_its_own_class() -> None:
    with pytest.raises(TopicNotFoundError, match="no such topic") as caught:
        raise_for_response(RemotingCommand(17, remark="no such topic"))
    assert caught.value.refresh_route


def test_an_unknown_code_keeps_its_number() -> None:
    with pytest.raises(RemoteError) as caught:
        raise_for_response(RemotingCommand(4242))
    assert (caught.value.code, caught.value.remark) == (4242, "")
