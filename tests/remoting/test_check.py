"""A response that is no success becomes the error of its code."""

from __future__ import annotations

import pytest

from kourou.errors import RemoteError, TopicNotFoundError
from kourou.protocol.command import RemotingCommand
from kourou.remoting.check import raise_for_response


def test_success_passes() -> None:
    raise_for_response(RemotingCommand(0))


def test_a_known_code_has_a_class_of_its_own() -> None:
    with pytest.raises(TopicNotFoundError, match="no such topic") as caught:
        raise_for_response(RemotingCommand(17, remark="no such topic"))
    assert caught.value.refresh_route


def test_an_unknown_code_keeps_its_number() -> None:
    with pytest.raises(RemoteError) as caught:
        raise_for_response(RemotingCommand(4242))
    assert (caught.value.code, caught.value.remark) == (4242, "")
