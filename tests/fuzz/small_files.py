"""Fuzz seeds and decoders of a broker's small files: timer, locks, offsets, order infos, counts."""

from __future__ import annotations

import zlib
from typing import Final

from kourou.broker.consuming.queue_locks import EXPIRY_MS
from kourou.broker.consuming.saved_locks import FILE_NAME as LOCKS_FILE
from kourou.broker.consuming.saved_locks import SavedLocks, parse_locks
from kourou.broker.popping.order_info import OrderInfos
from kourou.broker.popping.order_journal import decode_journal, encode_queue
from kourou.model.properties import encode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.popping.order_file import (
    decode_order_info_table,
    encode_order_info_table,
)
from kourou.protocol.record.encode import RecordDraft, encode_sealed
from kourou.store.state.config_file import ConfigFile
from kourou.store.timer.layouts import (
    TimerCheck,
    TimerUnit,
    decode_check,
    decode_unit,
    encode_check,
    encode_unit,
)
from kourou.testing.clock import ManualClock
from kourou.testing.disk import SimDisk
from kourou.testing.runtime import call_directly

_UNIT: Final = encode_unit(
    TimerUnit(-1, 1, 1_700_000_000_000, 5_000, 4_096, 300, 7, 1_700_000_005_123)
)
TIMER_UNITS: Final = (_UNIT, _UNIT[:-1], bytes(52))

_CHECK: Final = encode_check(TimerCheck(1_700_000_000_000, 52, 1, 1, 0, 0, 1, 4_396))
TIMER_CHECKS: Final = (_CHECK, _CHECK[:56], bytes(4096))

_VERSION: Final = b'{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":17},'
_COUNT: Final = b'{"T":{"count":5,"timeStamp":17}}}'
TIMER_METRICS: Final = (_VERSION + b'"timingCount":' + _COUNT,)
TRANSACTION_METRICS: Final = (_VERSION + b'"transactionCount":' + _COUNT,)

CONSUMER_OFFSETS: Final = (
    _VERSION + b'"offsetTable":{"T@g":{"0":5,"1":6},"U@g":{}},"pullOffsetTable":{"T@g":{"0":4}}}',
    b'{"offsetTable":{"T@g":{0:5,1:6},"%RETRY%g@g":{0:1}}}',
)
KV_CONFIG: Final = (b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"a:4;b:4"},"n":{}}}',)

BROKER_SETS: Final = (
    (
        b'{"brokerName":"a","clusterName":"C","masterBrokerId":1,"masterEpoch":2,"nextBrokerId":3,'
        b'"replicas":[{"address":"h:1","brokerId":1,"registerCheckCode":"h:1;0"},'
        b'{"address":"h:2","brokerId":2,"registerCheckCode":"h:2;0"}],"syncStateSet":[1,2],'
        b'"syncStateSetEpoch":3}'
    ),
)

LOCKS: Final = (
    b'{"locks":{"g":{"c1":[["T","b",0,1]],"c2":[["T","b",0,1]]},\n"h":{"c1":[["T","a",3,17]]}}}',
    b'{"locks":{"g":{"c1":[["T","b",0,1699999990000],["T","b",1,1700000000000]]}}}',
    b'{"locks":{}}',
)


def locks(data: bytes) -> None:
    """Load a file of locks like a starting broker."""
    disk = SimDisk()
    disk.make_directory("config")
    disk.truncate(LOCKS_FILE, len(data))
    disk.write(LOCKS_FILE, 0, [data])
    file = ConfigFile(disk, LOCKS_FILE, parse_locks)
    saved = parse_locks(file.load() or b"")
    locks = SavedLocks(file, call_directly, ManualClock(), lambda: 0).locks
    for group in locks.groups():
        for queue, client_id, asked_at_ms in locks.holders(group):
            assert -EXPIRY_MS <= asked_at_ms <= 0
            place = queue.topic, queue.broker_name, queue.queue_id
            assert place in [tuple(one[:3]) for one in saved.locks[group][client_id]]


ORDER_JOURNAL: Final = (
    b'["q","T","g",0,1700000000000,60000,[5,1],null,{"5":1},1700000000001,1,"a"]',
    b'["q","T","g",0,1700000000000,null,[],{"5":17},null,1700000000001,-1,null]',
    b'["c","T","g",0,1700000000000]',
    b'["r","T","g",0]',
    b'["s"]',
)


ORDER_INFOS: Final = (
    b'{\n"table":{\n"T@g":{\n0:{\n"o":[5,1],\n"ot":{\n5:17\n},\n"popTime":1\n}}}}',
    b'{"orderInfoCount":1,"table":{"T@g":{0:{"a":"b","cm":1,"i":2,"l":3,"o":[5],"oc":{5:1}}}}}',
)


def order_infos(data: bytes) -> None:
    """Load a file of order infos."""
    table = decode_order_info_table(data)
    assert decode_order_info_table(encode_order_info_table(table)).table == table.table


def order_journal(data: bytes) -> None:
    """Load a journal of order infos, with these bytes as its file or as one of its lines."""
    decode_journal(data)
    json = data.replace(b"\n", b"")
    contents = decode_journal(b"%08x %b\n" % (zlib.crc32(json), json))
    infos = OrderInfos()
    for queue, info in contents.infos.items():
        infos.restore(queue, info)
        assert decode_journal(encode_queue(infos, queue)).infos == {queue: info}
        infos.block(queue, 1_700_000_000_000)
        infos.take_ended(1_700_000_000_000)


def waiting_record() -> bytes:
    """Return the record of a scheduled message."""
    reported = {
        "REAL_TOPIC": "T",
        "REAL_QID": "0",
        "TIMER_OUT_MS": "1700000005000",
        "TIMER_DELIVER_MS": "1700000005123",
        "UNIQ_KEY": "7F000001000018B4AAC2000000000000",
    }
    host = ("127.0.0.1", 10911)
    draft = RecordDraft(
        topic=TIMER_TOPIC.encode(),
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_at_ms=1,
        born_host=host,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"body",
        properties=encode_properties(reported),
    )
    return encode_sealed(draft, 0, 0, 1)


def timer_unit(data: bytes) -> None:
    """Read a unit of the timer log."""
    unit = decode_unit(data)
    if unit is not None:
        assert encode_unit(unit) == data[:52]


def timer_check(data: bytes) -> None:
    """Read the timer's check file."""
    check = decode_check(data)
    assert decode_check(encode_check(check)) == check
