"""The id that a controller has assigned to this broker, in two small files of the store.

    brokerIdentity         <cluster>#<broker name>#<id>
    brokerIdentity-temp    <cluster>#<broker name>#<id>#<address>;<epoch ms>

The second one exists while the broker applies for an id: a repeated application with the same text
gets the same id, so that an answer that was lost costs none.

Source: BrokerMetadata.java, TempBrokerMetadata.java, MetadataFile.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from kourou.broker.controlling.controllers import Controllers, Identity
from kourou.decimals import decimal_or
from kourou.disk import Disk, replace
from kourou.errors import (
    ConfigError,
    CorruptRecordError,
    ProtocolError,
    RemoteError,
    TransportError,
)
from kourou.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

IDENTITY_FILE: Final = "brokerIdentity"
APPLICATION_FILE: Final = "brokerIdentity-temp"

_SEPARATOR: Final = "#"
_RETRY_S: Final = 1.0
_ID_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF


class Application(NamedTuple):
    """An application for an id that is not confirmed yet.

    Attributes:
        check_code: identifies the applicant; see `register_check_code`.
    """

    identity: Identity
    check_code: str


def read_identity(disk: Disk) -> Identity | None:
    """Return the assigned id; None if there is none yet.

    Raises:
        CorruptRecordError: the file does not parse.
        OSError: it cannot be read.
    """
    words = _read(disk, IDENTITY_FILE, 3)
    return None if words is None else _identity(IDENTITY_FILE, words)


def save_identity(disk: Disk, identity: Identity) -> None:
    """Save the assigned id durably, and remove the application for it."""
    _write(disk, IDENTITY_FILE, identity)
    if disk.exists(APPLICATION_FILE):
        remove_application(disk)


def check_names(saved: Identity, names: tuple[str, str]) -> None:
    """Check that a store belongs to the cluster and broker name of the configuration.

    Raises:
        ConfigError: it belongs to another one.
    """
    if saved[:2] != names:
        raise ConfigError(
            f"the store belongs to broker {saved.broker_name} of cluster {saved.cluster} "
            f"({IDENTITY_FILE}), not to {names[1]} of {names[0]}: set these names, or use another "
            "store"
        )


def read_application(disk: Disk) -> Application | None:
    """Return the application that is not confirmed yet; None if there is none, or it is damaged.

    A damaged one is replaced by a new one, which costs at most an id.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        words = _read(disk, APPLICATION_FILE, 4)
        return None if words is None else Application(_identity(APPLICATION_FILE, words), words[3])
    except CorruptRecordError:
        return None


def save_application(disk: Disk, application: Application) -> None:
    """Save an application durably, before it is sent."""
    _write(disk, APPLICATION_FILE, (*application.identity, application.check_code))


def remove_application(disk: Disk) -> None:
    """Remove an application that was refused."""
    disk.unlink(APPLICATION_FILE)
    disk.sync_directory("")


async def apply_for_id(
    disk: Disk, controllers: Controllers, names: tuple[str, str], check_code: str
) -> Identity:
    """Apply once for an id, and save it.

    Args:
        disk: holds the store.
        controllers: assign the id.
        names: cluster and broker name.
        check_code: see `register_check_code`; an earlier application is repeated with its own.

    Raises:
        TransportError: no controller has answered; the next call repeats the application.
        RemoteError: another replica has the id; the next call applies for another one.
        OSError: the id cannot be saved.
    """
    application = read_application(disk)
    if application is None or application.identity[:2] != names:
        broker_id = await controllers.next_broker_id(*names)
        application = Application(Identity(*names, broker_id), check_code)
        save_application(disk, application)
    try:
        await controllers.apply_broker_id(*application)
    except RemoteError as error:
        if error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            remove_application(disk)
        raise
    save_identity(disk, application.identity)
    log.info("controller.id_assigned id=%d", application.identity.broker_id)
    return application.identity


def _read(disk: Disk, name: str, count: int) -> list[str] | None:
    if not disk.exists(name):
        return None
    data = disk.read(name, 0, disk.size(name))
    try:
        words = data.decode().strip().split(_SEPARATOR)
    except UnicodeDecodeError as error:
        raise CorruptRecordError(name, error.start, "is no text") from error
    if len(words) != count or not all(words):
        raise CorruptRecordError(
            name, 0, f"{data[:100]!r} is not {count} words joined by {_SEPARATOR}; restore it"
        )
    return words


def _identity(name: str, words: list[str]) -> Identity:
    cluster, broker_name, number = words[:3]
    if not 1 <= decimal_or(number, 0, len(str(_ID_MAX))) <= _ID_MAX:
        raise CorruptRecordError(name, 0, f"the broker id {number!r} is not 1 to {_ID_MAX}")
    return Identity(cluster, broker_name, int(number))


def _write(disk: Disk, name: str, words: tuple[object, ...]) -> None:
    replace(disk, name, _SEPARATOR.join(map(str, words)).encode(), backup=None)


async def obtain_identity(
    disk: Disk,
    controllers: Controllers,
    names: tuple[str, str],
    new_check_code: Callable[[], str],
    on_failure: Callable[[Exception], None],
) -> Identity:
    """Return the saved identity, or apply for one each second until a controller assigns it.

    May be cancelled: the next call repeats the application.

    Args:
        disk: holds the file.
        controllers: the controllers to ask.
        names: of cluster and broker.
        new_check_code: returns the check code of a new application.
        on_failure: called when a controller refuses, or none answers.

    Raises:
        ConfigError: the store belongs to another broker name.
        CorruptRecordError, OSError: the file cannot be read or written.
    """
    saved = read_identity(disk)
    if saved is not None:
        check_names(saved, names)
        return saved
    while True:
        try:
            return await apply_for_id(disk, controllers, names, new_check_code())
        except (TransportError, RemoteError, ProtocolError) as error:
            on_failure(error)
            await asyncio.sleep(_RETRY_S)
