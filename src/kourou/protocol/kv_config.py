"""Key-value configuration and options of name servers, and tables of texts.

Source: KVTable.java, PutKVConfigRequestHeader.java, GetKVConfigRequestHeader.java,
GetKVConfigResponseHeader.java, DeleteKVConfigRequestHeader.java,
GetKVListByNamespaceRequestHeader.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kourou.protocol.codes import RequestCode
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.json_values import as_object, get_text_map
from kourou.protocol.request_spec import PROPERTIES_CODEC, BodyCodec, RequestSpec


@dataclass(slots=True)
class PutKVConfigRequestHeader:
    """PUT_KV_CONFIG (100); a missing namespace or key is answered with a specific remark."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


@dataclass(slots=True)
class GetKVConfigRequestHeader:
    """GET_KV_CONFIG (101)."""

    namespace: str
    key: str


@dataclass(slots=True)
class GetKVConfigResponseHeader:
    """The value, if the key exists."""

    value: str | None = None


@dataclass(slots=True)
class DeleteKVConfigRequestHeader:
    """DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


@dataclass(slots=True)
class GetKVListByNamespaceRequestHeader:
    """GET_KVLIST_BY_NAMESPACE (219); has a response body."""

    namespace: str


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    """Return the body of a KVTable: response body of 28, 103 and 219."""
    return dumps({"table": dict(table)})


def decode_kv_table(body: bytes) -> dict[str, str]:
    """Return the table decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object of texts.
    """
    return get_text_map(as_object(loads(body), "table"), "table")


KV_TABLE_CODEC: Final = BodyCodec(decode_kv_table, encode_kv_table)

SPECS: Final = (
    RequestSpec(RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader),
    RequestSpec(RequestCode.GET_KV_CONFIG, GetKVConfigRequestHeader, GetKVConfigResponseHeader),
    RequestSpec(RequestCode.DELETE_KV_CONFIG, DeleteKVConfigRequestHeader),
    RequestSpec(
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        GetKVListByNamespaceRequestHeader,
        response_body=KV_TABLE_CODEC,
    ),
    RequestSpec(RequestCode.UPDATE_NAMESRV_CONFIG, request_body=PROPERTIES_CODEC),
    RequestSpec(RequestCode.GET_NAMESRV_CONFIG, response_body=PROPERTIES_CODEC),
)
