"""Conversion of unsuccessful responses into exceptions."""

from __future__ import annotations

from kourou.errors import RemoteError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand


def raise_for_response(response: RemotingCommand) -> None:
    """Raise an error unless the response's code is SUCCESS.

    Raises:
        RemoteError: any other code; the subclass registered for that code, if there is one.
    """
    if response.code != ResponseCode.SUCCESS:
        raise RemoteError.from_response(response.code, response.remark)
