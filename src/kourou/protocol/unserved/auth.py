"""Users and access control: codes 3001 to 3010.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header;
UserInfo.java, AclInfo.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kourou.protocol.codes import RequestCode
from kourou.protocol.request_spec import RequestSpec, record_codec, record_list_codec


@dataclass(slots=True)
class CreateUserRequestHeader:
    """AUTH_CREATE_USER (3001); the body is the user."""

    username: str | None = None


@dataclass(slots=True)
class UpdateUserRequestHeader:
    """AUTH_UPDATE_USER (3002); the body contains the changed members."""

    username: str | None = None


@dataclass(slots=True)
class DeleteUserRequestHeader:
    """AUTH_DELETE_USER (3003)."""

    username: str | None = None


@dataclass(slots=True)
class GetUserRequestHeader:
    """AUTH_GET_USER (3004); the response body is empty for an unknown user."""

    username: str | None = None


@dataclass(slots=True)
class ListUsersRequestHeader:
    """AUTH_LIST_USER (3005): the users whose names contain `filter`; has a response body."""

    filter: str | None = None


@dataclass(slots=True)
class CreateAclRequestHeader:
    """AUTH_CREATE_ACL (3006); the body contains the access rights of the subject."""

    subject: str | None = None


@dataclass(slots=True)
class UpdateAclRequestHeader:
    """AUTH_UPDATE_ACL (3007); the body contains the changes."""

    subject: str | None = None


@dataclass(slots=True)
class DeleteAclRequestHeader:
    """AUTH_DELETE_ACL (3008): all policies of a subject, or those of one type or resource."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


@dataclass(slots=True)
class GetAclRequestHeader:
    """AUTH_GET_ACL (3009); has a response body."""

    subject: str | None = None


@dataclass(slots=True)
class ListAclsRequestHeader:
    """AUTH_LIST_ACL (3010): entries that contain both filters in their subject and resource.

    The response has a body.
    """

    subject_filter: str | None = None
    resource_filter: str | None = None


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user; in an update, a member that is None is not changed.

    Attributes:
        password: in clear text, also in responses.
        user_type: Super or Normal.
        user_status: enable or disable.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyEntryInfo:
    """Access rights to one resource.

    Attributes:
        resource: a type and a name, such as `Topic:orders` or `Group:billing*`.
        actions: among All, Any, Pub, Sub, Create, Update, Delete, Get and List.
        source_ips: addresses or networks; None for any.
        decision: Allow or Deny.
    """

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """Policy entries of one type: `policy_type` is Custom or Default; None means Custom."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] | None = None


@dataclass(frozen=True, slots=True)
class AclInfo:
    """The access rights of one subject, `User:name`."""

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] | None = None


_USER: Final = record_codec(UserInfo)
_ACL: Final = record_codec(AclInfo)

SPECS: Final = (
    RequestSpec(RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader, request_body=_USER),
    RequestSpec(RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader, request_body=_USER),
    RequestSpec(RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader),
    RequestSpec(RequestCode.AUTH_GET_USER, GetUserRequestHeader, response_body=_USER),
    RequestSpec(
        RequestCode.AUTH_LIST_USER,
        ListUsersRequestHeader,
        response_body=record_list_codec(UserInfo),
    ),
    RequestSpec(RequestCode.AUTH_CREATE_ACL, CreateAclRequestHeader, request_body=_ACL),
    RequestSpec(RequestCode.AUTH_UPDATE_ACL, UpdateAclRequestHeader, request_body=_ACL),
    RequestSpec(RequestCode.AUTH_DELETE_ACL, DeleteAclRequestHeader),
    RequestSpec(RequestCode.AUTH_GET_ACL, GetAclRequestHeader, response_body=_ACL),
    RequestSpec(
        RequestCode.AUTH_LIST_ACL,
        ListAclsRequestHeader,
        response_body=record_list_codec(AclInfo),
    ),
)
