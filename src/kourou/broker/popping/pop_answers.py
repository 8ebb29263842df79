"""Answers to pops: the stored bytes of the messages, and a header with their offsets."""

from __future__ import annotations

from dataclasses import replace

from kourou.broker.popping.pop_run import Popped, PopRun
from kourou.broker.popping.revived import REVIVED_FROM
from kourou.model.properties import POP_CK, decode_properties, encode_properties
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import FLAG_RESPONSE, RemotingCommand, response
from kourou.protocol.popping.info_strings import ENTRY_END, offsets_entry, start_offset_entry
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.protocol.popping.topic_names import topic_kind
from kourou.protocol.record.encode import draft_from_record, encode_record
from kourou.protocol.record.layout import without_seal
from kourou.protocol.record.read import read_record
from kourou.protocol.record.scan import split_records

FOUND = "FOUND"
NOTHING = "NO_MESSAGE_IN_QUEUE"


def found_answer(
    run: PopRun, pop_time_ms: int, body: bytes, counts_text: str | None = None
) -> RemotingCommand:
    """Return the answer with the messages.

    Args:
        run: the pop.
        pop_time_ms: its time.
        body: the records.
        counts_text: the consumed counts of an ordered pop.
    """
    return _answer(run, pop_time_ms, ResponseCode.SUCCESS, FOUND, body, counts_text)


def found_fields(
    pop_time_ms: int, invisible_ms: int, revive_queue: int, rest: int, infos: tuple[str, str]
) -> dict[str, str]:
    """Return the header fields of an answer; `infos` are the start offsets and the offsets."""
    start_offsets, offsets = infos
    return {
        "popTime": str(pop_time_ms),
        "invisibleTime": str(invisible_ms),
        "reviveQid": str(revive_queue),
        "restNum": str(rest),
        "startOffsetInfo": start_offsets,
        "msgOffsetInfo": offsets,
    }


def empty_answer(run: PopRun, now_ms: int, code: ResponseCode) -> RemotingCommand:
    """Return the answer without messages."""
    return _answer(run, now_ms, code, NOTHING, b"", "" if run.header.order else None)


def refusal_answer(command: RemotingCommand, code: int, text: str) -> RemotingCommand:
    """Return the answer to a refused pop, with Java's empty header."""
    fields = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}
    answer = response(command, code, text)
    answer.ext_fields = fields
    return answer


def _answer(
    run: PopRun,
    pop_time_ms: int,
    code: ResponseCode,
    remark: str,
    body: bytes,
    counts_text: str | None,
) -> RemotingCommand:
    starts, offsets = [], []
    for popped in run.popped:
        kind, queue_id = topic_kind(popped.queue.topic), popped.queue.queue_id
        starts.append(start_offset_entry(kind, queue_id, popped.offset))
        offsets.append(offsets_entry(kind, queue_id, popped.read.offsets))
    infos = (ENTRY_END.join(starts), ENTRY_END.join(offsets))
    fields = found_fields(pop_time_ms, run.header.invisible_time, run.revive_queue, run.rest, infos)
    if counts_text is not None:
        fields["orderCountInfo"] = counts_text
    command = run.request.command
    return RemotingCommand(
        code, fields, body, opaque=command.opaque, flag=FLAG_RESPONSE, remark=remark,
        serialize_type=command.serialize_type,
    )  # fmt: skip


def body_of(run: PopRun, pop_time_ms: int, broker_name: str, *, keeps_retry_topic: bool) -> bytes:
    """Return the records of the answer.

    Records of a retry topic are encoded again with the topic of the pop and their receipt handle,
    which clients cannot build from the header.

    Args:
        run: the pop.
        pop_time_ms: its time.
        broker_name: part of receipt handles.
        keeps_retry_topic: leave records of retry topics as they are stored.
    """
    parts = []
    for popped in run.popped:
        if not popped.is_retry or keeps_retry_topic:
            parts.append(popped.read.body)
        else:
            parts += _retried(run, popped, pop_time_ms, broker_name)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _retried(run: PopRun, popped: Popped, pop_time_ms: int, broker_name: str) -> list[bytes]:
    topic, _, queue_id = popped.queue
    handle = ReceiptHandle(
        popped.offset,
        pop_time_ms,
        run.header.invisible_time,
        run.revive_queue,
        topic_kind(topic),
        broker_name,
        queue_id,
    )
    parts = []
    for offset, record in zip(popped.read.offsets, split_records(popped.read.body), strict=True):
        header = read_record(record, check_crc=False)
        properties = decode_properties(without_seal(header.properties(record)))
        properties.pop(REVIVED_FROM, None)
        properties.setdefault(POP_CK, handle._replace(offset=offset).encode())
        text = encode_properties(properties)
        draft = draft_from_record(record, header, run.header.topic, queue_id, text)
        draft = replace(draft, prepared_transaction_offset=header.prepared_transaction_offset)
        parts.append(encode_record(draft, offset, header.physical_offset, header.store_at_ms))
    return parts
