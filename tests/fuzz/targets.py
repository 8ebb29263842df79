"""Targets of the fuzzer: every decoder, with its seeds and allowed errors.

Decoders of `kourou.protocol` are found by name, so that new ones are fuzzed automatically; a
decoder with unusual arguments raises here until it has a target of its own.
"""

from __future__ import annotations

import dataclasses
import gzip
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kourou.broker.config import BrokerConfig
from kourou.broker.consuming.consumer_offsets import parse_consumer_offsets
from kourou.broker.timer.timer_counts import parse_timer_metrics
from kourou.broker.transactions.op_messages import decode_op, encode_op, split_op
from kourou.broker.transactions.transaction_counts import parse_transaction_counts
from kourou.controller.broker_set import decode_broker_set
from kourou.errors import (
    CallRefusedError,
    ConfigError,
    CorruptRecordError,
    FilterSyntaxError,
    GrpcError,
    InvalidMessageError,
    KourouError,
    MalformedHeaderError,
    MalformedMessageError,
    ProtocolError,
    UsageError,
)
from kourou.filter.sql92 import SqlFilter
from kourou.filter.tags import matches_code, parse_tags
from kourou.model.epochs import EpochEntry, EpochList
from kourou.model.msgid import decode_offset_msg_id, decode_unique_id
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.recall_handle import decode_recall_handle
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.kv_config import parse_kv_config
from kourou.protocol.brokers import TimerCheckPoint
from kourou.protocol.command import RemotingCommand, SerializeType
from kourou.protocol.compression import decompress
from kourou.protocol.epoch_replication import (
    EpochTransfer,
    MasterFrame,
    MasterFrameDecoder,
    SlaveFrameDecoder,
    SlaveHandshake,
    encode_master_handshake,
    encode_slave_handshake,
)
from kourou.protocol.epoch_replication import encode_report as encode_epoch_report
from kourou.protocol.epoch_replication import encode_transfer_head as encode_epoch_head
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import decode_fields, encode_fields
from kourou.protocol.frame import decode_frame, encode_frame, frame_size
from kourou.protocol.hashing import java_string_hash
from kourou.protocol.message_batch import decode_batch, encode_batch
from kourou.protocol.popping.info_strings import (
    parse_offsets,
    parse_order_counts,
    parse_start_offsets,
)
from kourou.protocol.popping.receipt_handles import decode_receipt_handle
from kourou.protocol.popping.revive_records import (
    decode_ack,
    decode_checkpoint,
    encode_ack,
    encode_checkpoint,
)
from kourou.protocol.record.decode import decode_message, decode_messages
from kourou.protocol.record.read import read_checked, read_record
from kourou.protocol.replication import (
    ReportDecoder,
    TransferDecoder,
    encode_report,
    encode_transfer_head,
)
from kourou.protocol.timer_progress import decode_progress, encode_progress
from kourou.protocol.topic_table import decode_register_body
from kourou.protocol.trace_text import decode_traces, encode_trace
from kourou.remoting.proxy_protocol import claimed_source, preamble_bytes
from kourou.settings import load
from kourou.store.timer.timer_record import read_timer_record
from tests.fuzz import corpus, http2_bytes, proxy_calls, small_files
from tests.http2.peer import message
from tests.protocol_modules import header_classes, protocol_modules

_INFLATED_MAX: Final = 1 << 20

_SPECIAL: Final = frozenset(
    {
        *("decode_frame", "decode_header", "decode_fields", "decode_register_body"),
        *("decode_message", "decode_messages", "decode_batch", "decode_record", "decode_records"),
        *("decode_plain", "decode_traces"),
        *("decode_receipt_handle", "decode_checkpoint", "decode_ack", "decode_progress"),
    }
)
"""Decoders of `kourou.protocol` with a target below, or called by one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A decoder to fuzz.

    Attributes:
        name: unique; the part before the first dot is its group.
        run: decodes a case; raises an AssertionError if the result is inconsistent.
        seeds: bytes from which cases are generated.
        errors: errors that `run` may raise.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    errors: tuple[type[KourouError], ...] = (ProtocolError,)


def all_targets() -> list[Target]:
    """Return all targets, in the same order in each process."""
    return [*_framing(), *_records(), *_fields(), *_bodies(), *_texts(), *_grpc(), *_http2()]


def _framing() -> Iterator[Target]:
    headers = tuple(frame for pair in corpus.header_frames().values() for frame in pair)
    yield Target("frame", _frame, (*corpus.frames(), *headers[::8]))
    sized = tuple(len(frame).to_bytes(4, "big") + frame for frame in corpus.frames()[::16])
    yield Target("frame_size", _frame_size, sized)
    preambles = (
        b"PROXY TCP4 10.0.0.1 10.0.0.2 50000 10911\r\n",
        b"PROXY TCP6 2001:db8::1 2001:db8::2 50000 10911\r\n",
        b"PROXY UNKNOWN\r\n",
        b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x0a\x00\x00\x01\x0a\x00\x00\x02\xc3\x50\x2a\x9f",
        b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00",
    )
    yield Target("preamble", _preamble, preambles)
    reports = (encode_report(0), encode_report(1 << 40) + encode_report((1 << 40) + 300))
    yield Target("replication.reports", _reports, reports)
    transfer = encode_transfer_head(1 << 30, 200) + bytes(range(200))
    transfers = (transfer + encode_transfer_head((1 << 30) + 200, 0), transfer * 3)
    yield Target("replication.transfers", _transfers, transfers)
    handshake = encode_slave_handshake(SlaveHandshake(2, from_last_file=True))
    slave_frames = (handshake + encode_epoch_report(1 << 40), encode_epoch_report(300) * 2)
    yield Target("replication.slave_frames", _slave_frames, slave_frames)
    epochs = EpochList([EpochEntry(1, 0), EpochEntry(3, 1 << 20)])
    transfer = encode_epoch_head(1 << 30, EpochEntry(3, 1 << 20), 1 << 29, 200) + bytes(200)
    master_frames = (encode_master_handshake(1 << 30, epochs) + transfer, transfer * 3)
    yield Target("replication.master_frames", _master_frames, master_frames)


def _reports(data: bytes) -> None:
    whole = ReportDecoder().feed(data)
    split = ReportDecoder()
    assert [position for byte in data for position in split.feed(bytes([byte]))] == whole
    assert b"".join(map(encode_report, whole)) == data[: len(data) - len(data) % 8]


def _transfers(data: bytes) -> None:
    whole = TransferDecoder().feed(data)
    split = TransferDecoder()
    assert [transfer for byte in data for transfer in split.feed(bytes([byte]))] == whole
    frames = [encode_transfer_head(position, len(sent)) + sent for position, sent in whole]
    assert data.startswith(b"".join(frames))


def _slave_frames(data: bytes) -> None:
    whole = SlaveFrameDecoder().feed(data)
    split = SlaveFrameDecoder()
    assert [frame for byte in data for frame in split.feed(bytes([byte]))] == whole


def _master_frames(data: bytes) -> None:
    whole = MasterFrameDecoder().feed(data)
    split = MasterFrameDecoder()
    found = [frame for byte in data for frame in split.feed(bytes([byte]))]
    assert list(map(_comparable, found)) == list(map(_comparable, whole))


def _comparable(frame: MasterFrame) -> str:
    if isinstance(frame, EpochTransfer):
        frame = frame._replace(data=bytes(frame.data))
    return str(frame)


def _frame(data: bytes) -> None:
    command = decode_frame(data)
    for serialize_type in SerializeType:
        command.serialize_type = serialize_type
        try:
            frame = encode_frame(command)
        except MalformedHeaderError:
            # A binary header has no room for 32-bit numbers.
            assert serialize_type is SerializeType.ROCKETMQ
            continue
        assert frame_size(frame) == len(frame) - 4
        again = decode_frame(frame[4:])
        if serialize_type is SerializeType.ROCKETMQ:
            again, command = _without_empty_texts(again), _without_empty_texts(command)
        assert again == command


def _without_empty_texts(command: RemotingCommand) -> RemotingCommand:
    fields = {name: text for name, text in command.ext_fields.items() if name and text}
    return dataclasses.replace(command, ext_fields=fields, remark=command.remark or None)


def _frame_size(data: bytes) -> None:
    if len(data) >= 4:
        assert 4 <= frame_size(data) <= 16 * 1024 * 1024


def _preamble(data: bytes) -> None:
    size = preamble_bytes(data)
    if size is not None and size <= len(data):
        claimed_source(data[:size])


def _records() -> Iterator[Target]:
    records = corpus.records()
    answers = (*records, b"".join(records[:4]))
    yield Target("records.one", _record, records)
    yield Target("records.sealed", lambda data: read_checked(data, 0), records)
    yield Target("records.answer", decode_messages, answers)
    yield Target("records.stored", lambda data: decode_messages(data, decompress=False), answers)
    yield Target("timer.unit", small_files.timer_unit, small_files.TIMER_UNITS)
    yield Target("timer.check", small_files.timer_check, small_files.TIMER_CHECKS)
    yield Target("timer.record", read_timer_record, (small_files.waiting_record(),))
    yield Target("timer.progress", _timer_progress, (b"0 0 0", b"5449 39684 172800000"))
    yield Target("timer.metrics", parse_timer_metrics, small_files.TIMER_METRICS)
    counts = small_files.TRANSACTION_METRICS
    yield Target("kept.transaction_counts", parse_transaction_counts, counts)
    offsets = small_files.CONSUMER_OFFSETS
    yield Target("kept.consumer_offsets", parse_consumer_offsets, offsets)
    yield Target("kept.kv_config", parse_kv_config, small_files.KV_CONFIG)
    yield Target("kept.broker_set", decode_broker_set, small_files.BROKER_SETS)
    yield Target("kept.locks", small_files.locks, small_files.LOCKS, (CorruptRecordError,))
    yield Target("kept.order_journal", small_files.order_journal, small_files.ORDER_JOURNAL)
    yield Target("kept.order_infos", small_files.order_infos, small_files.ORDER_INFOS)
    yield Target("batch", _batch, corpus.batches())
    yield Target("traces", _traces, corpus.traces())
    yield Target("op_entries", _op_entry, (b"0,", b"12,13,17,", b"1700000000000", b"007,5,"))
    yield Target("compressed", _compressed, corpus.compressed(), (MalformedMessageError,))
    yield Target("revive.checkpoint", _checkpoint, corpus.revive_records("check_point"))
    yield Target("revive.ack", _ack, corpus.revive_records("ack", "batch_ack"))


def _timer_progress(data: bytes) -> None:
    progress = decode_progress(TimerCheckPoint(), data.decode("latin-1"))
    assert decode_progress(TimerCheckPoint(), encode_progress(progress)) == progress


def _checkpoint(data: bytes) -> None:
    record = decode_checkpoint(data)
    assert decode_checkpoint(encode_checkpoint(record)) == record


def _ack(data: bytes) -> None:
    record = decode_ack(data)
    assert decode_ack(encode_ack(record)) == record


def _traces(data: bytes) -> None:
    records = decode_traces(data)
    text = "".join(map(encode_trace, records))
    assert decode_traces(text.encode()) == records


def _op_entry(data: bytes) -> None:
    offsets = decode_op(data)
    assert decode_op(encode_op(offsets)) == offsets
    parts = split_op(offsets, 64)
    assert [offset for part in parts for offset in part] == offsets
    assert all(len(encode_op(part)) <= 64 for part in parts)


def _record(data: bytes) -> None:
    header = read_record(data, check_crc=False)
    assert 0 < header.total_size <= len(data)
    assert header.born_host
    assert header.store_host
    decode_message(data, check_crc=False)


def _batch(data: bytes) -> None:
    items = decode_batch(data)
    assert decode_batch(encode_batch(items)) == items


def _compressed(data: bytes) -> None:
    sys_flag = data[0] << 8 if data else 0
    assert len(decompress(data[1:], sys_flag, size_max=_INFLATED_MAX)) <= _INFLATED_MAX


def _fields() -> Iterator[Target]:
    frames = corpus.header_frames()
    for name, header_class in header_classes():
        assert dataclasses.is_dataclass(header_class), name
        seeds = frames.get(name) or corpus.frames()
        yield Target(f"fields.{name}", _header_reader(header_class), seeds)


def _header_reader(header_class: type[Any]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        header = decode_fields(header_class, decode_frame(data).ext_fields)
        assert decode_fields(header_class, encode_fields(header)) == header

    return run


def _bodies() -> Iterator[Target]:
    yielded: set[str] = set()
    for module in protocol_modules():
        for name, decoder in sorted(vars(module).items()):
            if name.startswith("decode_") and name not in _SPECIAL | yielded:
                yielded.add(name)
                yield Target(f"body.{name}", _checked(decoder), _accepted(decoder))
    registrations = _accepted(_register_plain) + _accepted(_register_compressed)
    yield Target("body.register_plain", _register_plain, registrations)
    yield Target("body.register_compressed", _register_compressed, registrations)
    yield Target("body.json", _json, corpus.bodies())


def _checked(decoder: Callable[..., object]) -> Callable[[bytes], object]:
    """Return the decoder, if bytes are its only required argument."""
    first, *others = inspect.signature(decoder, eval_str=True).parameters.values()
    if first.annotation is not bytes or any(p.default is p.empty for p in others):
        raise TypeError(f"{decoder.__qualname__} needs a target of its own")
    return decoder


def _accepted(decoder: Callable[[bytes], object]) -> tuple[bytes, ...]:
    """Return the recorded bodies that the decoder takes, which lead deepest; else all."""
    accepted = []
    for body in corpus.bodies():
        try:
            decoder(body)
        except ProtocolError:
            continue
        accepted.append(body)
    return tuple(accepted) or corpus.bodies()


def _register_plain(data: bytes) -> object:
    return decode_register_body(data, compressed=False)


def _register_compressed(data: bytes) -> object:
    return decode_register_body(data, compressed=True)


def _json(data: bytes) -> None:
    value = loads(data)
    if value is not None:
        loads(dumps(value))


_SQL92: Final = (
    b"a > 5 AND b = 'x' OR NOT (c BETWEEN -1.5e3 AND 9223372036854775807)",
    b"$a_1 IN ('x', 'it''s') AND b NOT CONTAINS 'y' -- comment\n AND c IS NOT NULL",
    b"((TRUE)) /* x */ <> FALSE AND d STARTSWITH '\xe4\xb8\xad' OR e ENDSWITH ''",
    b"(" * 70 + b"a" + b")" * 70,
    b"NOT " * 70 + b"a",
    b"a = 1" + b" AND a = 1" * 200,
)


def _sql92(data: bytes) -> None:
    compiled = SqlFilter(data.decode(errors="replace"))
    for text in ("1", "-0.0", "NaN", "x", "", "true"):
        compiled.matches(dict.fromkeys("abcde", text))


def _texts() -> Iterator[Target]:
    yield Target("properties", _properties, corpus.properties())
    tags = (b"*", b"", b"TagA || TagB", b"a||b||c", b"||", "\u8ba2\u5355 || \U0001f600".encode())
    yield Target("text.tags", _tags, tags, (FilterSyntaxError,))
    yield Target("text.sql92", _sql92, _SQL92, (FilterSyntaxError,))
    ids = (
        b"0A00000100002A9F0000000000000003",
        b"7F000001000018B4AAC2000000000000",
        b"20010DB8000000000000000000000001000018B4AAC2000000000000",
    )
    handles = (b"djEgVCBicm9rZXItYSAxNzk1MjI4MzgwMDAxIEMwMDA=", b"bm9uZQ", b"")
    receipts = (b"100 1700000000000 60000 2 0 broker-a 3 105", b"1 2 +3 4 1 b 7", b"1 2 3")
    yield Target("text.receipt_handle", _receipt_handle, receipts)
    queues = (b"0 0 100;0 1 5;1 0 9;2 0 12", b"0 0 100,101,103;0 1 5", b"0 0 2;0 qo0%100 3;")
    for parse in (parse_start_offsets, parse_offsets, parse_order_counts):
        yield Target(f"text.{parse.__name__}", _as_text(parse), queues)
    yield Target("text.recall_handle", _as_text(decode_recall_handle), handles, (UsageError,))
    yield Target("text.offset_msg_id", _as_text(decode_offset_msg_id), ids, (InvalidMessageError,))
    yield Target("text.unique_id", _as_text(decode_unique_id), ids, (InvalidMessageError,))
    conf = (
        b"listenPort = 10911\nbindAddress:0.0.0.0\n# remark\nidleTimeoutMs=120000\n!remark",
        b"listen = a\\u0041 \\\n  b\nframe_bytes_max=65536\ntls.server.mode=permissive\r\n",
    )
    toml = (
        b'listen = "0.0.0.0"\nlistenPort = 10911\nframe_bytes_max = 65_536\n',
        b'[tls]\nserver = {mode = "permissive"}\n[tls.client]\nauthServer = true\n',
    )
    for config in (BrokerConfig, NamesrvConfig):
        for suffix, seeds in (("conf", conf), ("toml", toml)):
            name = f"settings.{config.__name__}.{suffix}"
            yield Target(name, _settings(config, Path(f"fuzz.{suffix}")), seeds, (ConfigError,))


def _receipt_handle(data: bytes) -> None:
    handle = decode_receipt_handle(data.decode(errors="replace"))
    assert decode_receipt_handle(handle.encode()) == handle


def _properties(data: bytes) -> None:
    properties = decode_properties(data)
    assert decode_properties(encode_properties(properties)) == properties


def _tags(data: bytes) -> None:
    text = data.decode(errors="replace")
    assert -(1 << 31) <= java_string_hash(text) < 1 << 31
    subscription = parse_tags("T", text)
    assert all(matches_code(subscription, code) for code in subscription.code_set)


def _as_text(decoder: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: decoder(data.decode(errors="replace"))


def _settings(config: type[Any], path: Path) -> Callable[[bytes], object]:
    def run(data: bytes) -> object:
        text = data.decode(errors="replace")
        return load(config, path=path, text=text, environ={}, prefix="KOUROU_FUZZ_", flags={})

    return run


def _grpc() -> Iterator[Target]:
    refusals = (ProtocolError, CallRefusedError, GrpcError)
    yield Target("grpc.request", proxy_calls.any_request, proxy_calls.first_requests())
    for name, run, rpc in (
        ("send", proxy_calls.send, "SendMessage"),
        ("plain_send", proxy_calls.plain_send, "SendMessage"),
        ("receive", proxy_calls.receive, "ReceiveMessage"),
        ("settings", proxy_calls.settings, "Telemetry"),
        ("route", proxy_calls.route, "QueryRoute"),
    ):
        yield Target(f"grpc.{name}", run, proxy_calls.requests(rpc), refusals)
    yield Target("grpc.record", proxy_calls.record, corpus.records())
    signed = proxy_calls.AUTHORIZATIONS
    yield Target("grpc.authorization", proxy_calls.authorization, signed, refusals)
    yield Target("grpc.handle", proxy_calls.handle, proxy_calls.HANDLES, refusals)


def _http2() -> Iterator[Target]:
    yield Target("http2.connection", http2_bytes.connection, http2_bytes.conversations())
    yield Target("http2.sequence", http2_bytes.sequence, http2_bytes.programs())
    yield Target("http2.calls", http2_bytes.calls, http2_bytes.conversations())
    yield Target("http2.header_block", http2_bytes.header_block, http2_bytes.header_blocks())
    packed = message(gzip.compress(bytes(3000), mtime=0), flag=1)
    seeds = (message(b"a") + packed, packed * 2)
    yield Target("http2.messages", http2_bytes.messages, seeds, (GrpcError,))
    yield Target("http2.timeout", http2_bytes.timeout, (b"3S", b"99999999n", b"15M"))


def _is_of(module: ModuleType, value: object) -> bool:
    """Tell whether the module defines the value, and does not import it."""
    return getattr(value, "__module__", "") == module.__name__
