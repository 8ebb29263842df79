"""A decision of the controller becomes the broker's id and role."""

from __future__ import annotations

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.replication.controlled_role import ControlledRole, InSyncSet, config_for_role
from kourou.broker.replication.replication_config import BrokerRole, ReplicationConfig
from kourou.broker.server import Broker
from kourou.errors import ConfigError
from kourou.testing.disk import SimDisk
from kourou.testing.runtime import sim_runtime

SET = InSyncSet(frozenset({2, 3}), 4)


def test_a_master_has_broker_id_0_and_waits_for_copies() -> None:
    role = ControlledRole(2, 2, 7, "", SET)

    config = config_for_role(BrokerConfig(), role)

    assert role.is_master
    assert config.broker_id == 0
    assert config.replication.broker_role is BrokerRole.SYNC_MASTER
    assert config.replication.accepts_slaves


def test_a_slave_has_the_id_and_the_master_of_the_controller() -> None:
    role = ControlledRole(3, 2, 7, "10.0.0.1:10912", SET)

    config = config_for_role(BrokerConfig(), role)

    assert not role.is_master
    assert config.broker_id == 3
    assert config.replication.is_slave
    assert config.replication.ha_master_address == "10.0.0.1:10912"


@pytest.mark.parametrize("is_auto", [False, True])
def test_an_option_that_protects_messages_needs_a_controller_or_a_role(*, is_auto: bool) -> None:
    rules = ReplicationConfig(min_in_sync_replicas=2, enable_auto_in_sync_replicas=is_auto)
    config = BrokerConfig(replication=rules)
    with pytest.raises(ConfigError, match="no in-sync set without a controller"):
        Broker(config, SimDisk(), sim_runtime())


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="ha_master_address"):
        config_for_role(BrokerConfig(), ControlledRole(3, 2, 7, "nowhere", SET))
