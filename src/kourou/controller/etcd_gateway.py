"""Requests to etcd by the JSON gateway of its v3 interface: POST, one JSON object each way.

Keys and values are base64 texts, 64-bit integers are texts, and members with the value 0 or false
are missing. Calls run in threads, since `http.client` blocks. A call goes to one endpoint; after a
failure the next call goes to the next endpoint.

Source: etcd 3.4, api-reference `etcdserverpb/rpc.proto` and "gRPC gateway".
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from kourou.documented import documented
from kourou.errors import ConfigError, EtcdError
from kourou.remoting.runtime import Offload

ANSWER_BYTES_MAX: Final = 64 * 1024**2
_UNAUTHENTICATED: Final = 16
"""gRPC's code of a missing or expired token."""
_AUTHENTICATE: Final = "auth/authenticate"

Json = Mapping[str, Any]


@documented
@dataclass(frozen=True, kw_only=True)
class EtcdConfig:
    """Options of the connection to etcd.

    Raises:
        ConfigError: an address does not parse, or options contradict each other.
    """

    etcd: tuple[str, ...] = ()
    """The endpoints of etcd, `http://host:port` or `https://host:port`, separated by `;` or `,`."""
    etcd_prefix: str = "/kourou/controller"
    """The prefix of all keys. Controllers of one group share it; other groups need another one."""
    etcd_user: str | None = None
    """The user, if etcd requires authentication."""
    etcd_password: str | None = field(default=None, metadata={"secret": True})
    """The user's password."""
    etcd_ca_file: Path | None = None
    """The certificates (PEM) of the authorities that etcd's certificate may come from. None: those
    of the system."""
    etcd_cert_file: Path | None = None
    """The client certificate (PEM), if etcd requires one."""
    etcd_key_file: Path | None = None
    """The key of the client certificate (PEM)."""
    etcd_timeout_ms: int = 1_000
    """Longest wait for an answer of etcd, in ms."""
    etcd_ttl_s: int = 2
    """Time in seconds after which another controller may lead if the leading one is lost; etcd
    allows 2 at least."""

    def __post_init__(self) -> None:
        for url in self.endpoints:
            if not _is_endpoint(url):
                raise ConfigError(f"etcd is {url!r}; it must be http://host:port or https://...")
        if (self.etcd_user is None) != (self.etcd_password is None):
            raise ConfigError("etcd_user and etcd_password must be set together")
        if (self.etcd_cert_file is None) != (self.etcd_key_file is None):
            raise ConfigError("etcd_cert_file and etcd_key_file must be set together")
        if not self.etcd_prefix.strip("/"):
            raise ConfigError("etcd_prefix is empty; it must be a path such as /kourou/controller")
        if self.etcd_timeout_ms < 1:
            raise ConfigError(f"etcd_timeout_ms is {self.etcd_timeout_ms}; it must be at least 1")
        if self.etcd_ttl_s < 2:
            raise ConfigError(f"etcd_ttl_s is {self.etcd_ttl_s}; it must be at least 2")

    @property
    def endpoints(self) -> Sequence[str]:
        """The single endpoints."""
        urls = (url.strip() for part in self.etcd for url in part.split(","))
        return [url.rstrip("/") for url in urls if url]


def _is_endpoint(url: str) -> bool:
    """Return whether a URL names scheme, host and perhaps port of an etcd, and no more."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a port above 65,535, or an incomplete IPv6 address
        return False
    is_http = parts.scheme in ("http", "https")
    return is_http and bool(parts.hostname) and not parts.path and port != 0


class Etcd(Protocol):
    """Calls of etcd."""

    async def call(self, method: str, body: Json) -> Json:
        """Call a method such as `kv/txn`, and return the answer.

        Raises:
            EtcdError: etcd refused, or did not answer; then it may have done it.
        """


class _Answer(NamedTuple):
    status: int
    body: Json


class EtcdGateway:
    """A client of etcd.

    Args:
        config: endpoints, user, TLS.
        offload: runs the blocking calls.

    Raises:
        ConfigError: a certificate or key cannot be used.
    """

    def __init__(self, config: EtcdConfig, offload: Offload) -> None:
        self._config = config
        self._offload = offload
        self._endpoints = list(config.endpoints)
        self._idle: list[tuple[str, http.client.HTTPConnection]] = []
        self._token: str | None = None
        self._is_closed = False
        self._tls: ssl.SSLContext | None = None
        if any(url.startswith("https:") for url in self._endpoints):
            self._tls = _tls_context(config)

    async def call(self, method: str, body: Json) -> Json:
        if self._config.etcd_user is not None and self._token is None:
            await self._authenticate()
        answer = await self._exchange(method, body)
        if answer.body.get("code") == _UNAUTHENTICATED and self._config.etcd_user is not None:
            await self._authenticate()
            answer = await self._exchange(method, body)
        return _checked(answer)

    async def _authenticate(self) -> None:
        self._token = None
        credentials = {"name": self._config.etcd_user, "password": self._config.etcd_password}
        answer = _checked(await self._exchange(_AUTHENTICATE, credentials))
        self._token = answer["token"]

    def close(self) -> None:
        """Close the connections; one in use is closed when its call has ended."""
        self._is_closed = True
        while self._idle:
            self._idle.pop()[1].close()

    async def _exchange(self, method: str, body: Json) -> _Answer:
        """Send a request to the current endpoint; after a failure, choose the next one."""
        url = self._endpoints[0]
        try:
            async with asyncio.timeout(2 * self._config.etcd_timeout_ms / 1000):
                return await self._offload(self._post, url, method, body)
        except (OSError, http.client.HTTPException, ValueError, TimeoutError) as error:
            if self._endpoints[0] == url:
                self._endpoints.append(self._endpoints.pop(0))
            is_late = isinstance(error, TimeoutError)
            reason = "timed out" if is_late else str(error) or type(error).__name__
            raise EtcdError(f"etcd at {url} did not answer {method}: {reason}") from error

    def _post(self, url: str, method: str, body: Json) -> _Answer:
        """Send a request and wait for the answer; runs in a thread."""
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = self._token
        connection, is_reused = self._take(url)
        payload = json.dumps(body)
        try:
            try:
                connection.request("POST", f"/v3/{method}", payload, headers)
                received = connection.getresponse()
            except (OSError, http.client.HTTPException):
                if not is_reused:
                    raise
                # etcd has closed the idle connection. A change that it made nevertheless is not
                # made again: all changes are compared.
                connection.close()
                connection = self._open(url)
                connection.request("POST", f"/v3/{method}", payload, headers)
                received = connection.getresponse()
            answer = _read_object(received)
        except BaseException:
            connection.close()
            raise
        self._idle.append((url, connection))
        if self._is_closed:
            self.close()
        return _Answer(received.status, answer)

    def _take(self, url: str) -> tuple[http.client.HTTPConnection, bool]:
        """Return an idle connection to the endpoint, or a new one, and whether it was idle."""
        while self._idle:
            found, connection = self._idle.pop()
            if found == url:
                return connection, True
            connection.close()
        return self._open(url), False

    def _open(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        timeout_s = self._config.etcd_timeout_ms / 1000
        host = parts.hostname or ""
        if parts.scheme == "https":
            port = parts.port or 443
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)
        return http.client.HTTPConnection(host, parts.port or 80, timeout=timeout_s)


def _tls_context(config: EtcdConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.etcd_ca_file)
        if config.etcd_cert_file is not None:
            context.load_cert_chain(config.etcd_cert_file, config.etcd_key_file)
    except OSError as error:
        raise ConfigError(f"a certificate or key for etcd cannot be used: {error}") from error
    return context


def _read_object(received: http.client.HTTPResponse) -> Json:
    """Return the JSON object of an answer.

    Raises:
        ValueError: it is none, or too large.
    """
    text = received.read(ANSWER_BYTES_MAX)
    if not received.isclosed():
        raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise ValueError(f"an answer that is no JSON object: {text[:80]!r}")  # noqa: TRY004
    return answer


def _checked(answer: _Answer) -> Json:
    """Return the body of an answer.

    Raises:
        EtcdError: it is an error.
    """
    error = answer.body.get("error")
    if error is None and answer.status == http.client.OK:
        return answer.body
    text = error.get("message") if isinstance(error, dict) else error
    raise EtcdError(f"etcd refused: {text or f'HTTP status {answer.status}'}")
