"""All encoders produce the same bytes for the same message, and the decoder reads them."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from kourou.model.host import pack_address
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.sysflag import TRANSACTION_COMMIT
from kourou.protocol.hashing import crc32
from kourou.protocol.record.decode import decode_message, decode_messages
from kourou.protocol.record.encode import (
    SEALED_BYTES,
    TAIL,
    RecordColumns,
    RecordDraft,
    encode_batch_records,
    encode_committed,
    encode_record,
    encode_sealed,
    pack_head,
    pack_properties_size,
    pack_shared,
    sealed_properties_size,
    sealed_size,
)
from kourou.protocol.record.layout import (
    HEAD_FIELDS,
    HEAD_V4,
    MAGIC_V1,
    SEAL_BYTES,
    encode_seal,
    head_struct,
    topic_field,
)
from kourou.protocol.record.read import read_checked, read_record

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text("abcXYZ_", min_size=1, max_size=9)
drafts = st.builds(
    RecordDraft,
    topic=st.text("abc-%ä", min_size=1, max_size=40).map(str.encode),
    queue_id=int32,
    flag=int32,
    sys_flag=st.sampled_from((0, 1, 2, 3, 8)),
    born_at_ms=int64,
    born_host=st.just(("10.0.0.1", 99)),
    store_host=st.just(("10.0.0.2", 10911)),
    reconsume_times=int32,
    prepared_transaction_offset=int64,
    body=st.binary(max_size=64),
    properties=st.dictionaries(names, names, min_size=1, max_size=4).map(encode_properties),
)
positions = st.tuples(int64, int64, int64)
"""Queue offset, log position and store time."""


def record_of_fast_path(
    draft: RecordDraft, queue_offset: int, position: int, store_at_ms: int
) -> bytes:
    """Return the record as the loop of the fast path of sends packs it."""
    topic, size = topic_field(draft.topic), len(draft.properties) + SEAL_BYTES
    record = b"".join((
        pack_head(
            SEALED_BYTES + len(draft.body) + len(topic) + len(draft.properties), MAGIC_V1,
            crc32(draft.body), draft.queue_id, draft.flag, queue_offset, position, draft.sys_flag,
            draft.born_at_ms, pack_address(draft.born_host[0]), draft.born_host[1], store_at_ms,
            pack_address(draft.store_host[0]), draft.store_host[1], draft.reconsume_times,
            draft.prepared_transaction_offset, len(draft.body),
        ),
        draft.body,
        TAIL % (topic, pack_properties_size(size), draft.properties[:5], draft.properties[5:]),
    ))  # fmt: skip
    return record + encode_seal(crc32(record))


@given(draft=drafts, at=positions)
def test_record_of_the_fast_path_equals_that_of_its_draft(
    draft: RecordDraft, at: tuple[int, int, int]
) -> None:
    assert record_of_fast_path(draft, *at) == encode_sealed(draft, *at)


@given(draft=drafts, at=positions)
def test_decoder_reads_what_was_encoded(draft: RecordDraft, at: tuple[int, int, int]) -> None:
    record = encode_sealed(draft, *at)
    header = read_checked(record, 0)
    assert len(record) == header.total_size == sealed_size(draft)
    assert header.body(record) == draft.body
    assert header.properties(record)[:-SEAL_BYTES] == draft.properties
    message = decode_message(record, decompress=False)
    assert (message.topic.encode(), message.body) == (draft.topic, draft.body)
    assert message.properties == decode_properties(draft.properties)
    assert (message.queue_offset, message.physical_offset, message.store_at_ms) == at
    assert (message.born_host, message.store_host) == (draft.born_host, draft.store_host)
    unsealed = decode_message(encode_record(draft, *at), decompress=False)
    assert replace(unsealed, store_size=message.store_size) == message


@given(first=drafts, others=st.lists(drafts, max_size=4), at=positions)
def test_records_of_a_batch_equal_those_of_its_drafts(
    first: RecordDraft, others: list[RecordDraft], at: tuple[int, int, int]
) -> None:
    first_offset, position, store_at_ms = at[0] % 2**32, at[1] % 2**32, at[2]
    batch = [
        replace(
            first, body=one.body, flag=one.flag, properties=one.properties
        )
        for one in (first, *others)
    ]  # fmt: skip
    sizes = [sealed_size(one) for one in batch]
    starts = list(accumulate(sizes[:-1], initial=position))
    columns = RecordColumns(
        sizes,
        [len(one.body) for one in batch],
        [one.flag for one in batch],
        [one.body for one in batch],
        (
            [topic_field(first.topic)] * len(batch),
            [sealed_properties_size(len(one.properties)) for one in batch],
            [one.properties for one in batch],
        ),
    )
    shared = pack_shared(
        first.sys_flag, first.born_at_ms, pack_address(first.born_host[0]), first.born_host[1],
        store_at_ms, pack_address(first.store_host[0]), first.store_host[1],
        first.reconsume_times, first.prepared_transaction_offset,
    )  # fmt: skip
    records = encode_batch_records(columns, starts, first.queue_id, first_offset, shared)

    assert records == b"".join(
        encode_sealed(one, first_offset + number, start, store_at_ms)
        for number, (one, start) in enumerate(zip(batch, starts, strict=True))
    )
    assert len(decode_messages(records, decompress=False)) == len(batch)


@given(draft=drafts, at=positions, half_at=positions, half_only=names)
def test_record_of_a_commit_equals_that_of_its_draft(
    draft: RecordDraft, at: tuple[int, int, int], half_at: tuple[int, int, int], half_only: str
) -> None:
    half_draft = replace(
        draft, topic=b"HALF", queue_id=0, properties=draft.properties + half_only.encode()
    )
    half = encode_sealed(half_draft, *half_at)
    committed = replace(
        draft,
        sys_flag=draft.sys_flag | TRANSACTION_COMMIT,
        prepared_transaction_offset=half_at[1],
    )
    queue_offset, position, store_at_ms = at

    parts = encode_committed(
        half[:-SEAL_BYTES], topic_field(b"HALF"), (topic_field(draft.topic), draft.queue_id),
        len(draft.properties), (position, queue_offset, store_at_ms, half_at[1]),
    )  # fmt: skip
    assert b"".join(parts) == encode_sealed(committed, *at)


@given(draft=drafts, at=positions, names=st.sets(st.sampled_from(list(HEAD_FIELDS)), min_size=1))
def test_some_fields_of_a_head_are_those_of_the_whole_head(
    draft: RecordDraft, at: tuple[int, int, int], names: set[str]
) -> None:
    record = encode_record(draft, *at)
    chosen = [name for name in HEAD_FIELDS if name in names]
    whole = dict(zip(HEAD_FIELDS, HEAD_V4.unpack_from(record), strict=True))
    assert head_struct(*chosen).unpack_from(record) == tuple(whole[name] for name in chosen)
    header = read_record(record, check_crc=True)
    assert [getattr(header, name) for name in chosen] == [whole[name] for name in chosen]
