"""What is advised of a service that was installed: whether those who look for it can reach it."""

from __future__ import annotations

import pytest

from farm.pipeline.provision import _unreachable
from farm.transports.ssh.systemd_service import AgentServiceSettings


@pytest.mark.parametrize(
    ("tracker", "open_to_network", "advised"),
    [
        ("", False, False),
        ("lab:9190", False, True),
        ("lab:9190", True, False),
        ("10.0.0.7:9190", False, True),
        ("127.0.0.1:9190", False, False),
        ("127.0.1.1:9190", False, False),
        ("localhost:9190", False, False),
        ("[::1]:9190", False, False),
    ],
)
def test_a_service_on_loopback_is_not_reached_by_the_clients_of_a_tracker_elsewhere(
    tracker: str, open_to_network: bool, advised: bool
) -> None:
    service = AgentServiceSettings(tracker, "pi", open_to_network=open_to_network)
    assert ("--open-to-network" in _unreachable(service)) is advised
