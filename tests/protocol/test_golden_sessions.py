"""Recorded sessions of Java's clients, brokers and name server are decoded frame by frame."""

from __future__ import annotations

import pytest

from kourou.protocol.fields import encode_fields
from kourou.protocol.frame import decode_frame, encode_frame, frame_size
from kourou.protocol.unserved import ALL_REQUESTS
from tests.golden_exchanges import SessionFrame, sessions


@pytest.mark.parametrize("name", sorted(sessions()))
def test_all_frames_of_a_session_are_decoded_and_encoded_unchanged(name: str) -> None:
    asked: dict[tuple[int, str, int], SessionFrame] = {}
    for frame in sessions()[name]:
        command = decode_frame(frame.frame[4:])
        assert frame_size(frame.frame) == len(frame.frame) - 4
        assert command.opaque == frame.opaque
        assert command.is_response == (frame.kind == "response")
        assert command.is_oneway == (frame.kind == "oneway")
        assert decode_frame(encode_frame(command)[4:]) == command
        if not command.is_response:
            check_request(command.code, frame)
            asked[frame.connection, frame.sender, frame.opaque] = frame
        else:
            check_response(frame, asked)


def check_request(code: int, frame: SessionFrame) -> None:
    command, spec = decode_frame(frame.frame[4:]), ALL_REQUESTS[code]
    assert code == frame.code
    if spec.header is not None:
        fields = encode_fields(command.header(spec.header))
        of_hooks = {"AccessKey", "Signature", "ReqT"}
        assert set(command.ext_fields) - of_hooks <= set(fields)
    if spec.request_body is not None and command.body:
        spec.request_body.decode(command.body)


def check_response(frame: SessionFrame, asked: dict[tuple[int, str, int], SessionFrame]) -> None:
    """Check that a response has the opaque of a request, and the registered header and body."""
    requests = [
        request
        for (connection, sender, opaque), request in asked.items()
        if (connection, opaque) == (frame.connection, frame.opaque) and sender != frame.sender
    ]
    if not requests:
        # The request was sent before the recording began.
        return
    command, spec = decode_frame(frame.frame[4:]), ALL_REQUESTS[requests[-1].code]
    if command.code == 0 and spec.response_header is not None:
        fields = encode_fields(command.header(spec.response_header))
        assert set(command.ext_fields) <= set(fields)
    if command.code == 0 and spec.response_body is not None and command.body:
        spec.response_body.decode(command.body)
