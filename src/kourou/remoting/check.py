"""A response that is not a success, as an exception."""

from __future__ import annotations

from kourou.errors import RemoteError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand


def raise_for_response(response: RemotingCommand) -> None:
    """Return if the peer said SUCCESS.

    Raises:
        RemoteError: any other code; the subclass of the code where it has one.
    """
    if response.code != ResponseCode.SUCCESS:
        raise RemoteError.from_response(response.code, response.remark)
