"""Addresses of clusters, on the command line and in devices.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.api.resolve import resolve_cluster_address
from farm.config import load_fleet
from farm.errors import ConfigError, UsageError


@pytest.mark.parametrize("address", ["tcp://head:8786", "tls://10.0.0.1:1", "tcp://[::1]:65535"])
def test_the_command_line_overrides_devices_toml(address: str, tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    path.write_text(f'cluster = "{address}"\n')
    configured = load_fleet(path).cluster
    assert resolve_cluster_address(None, configured) == address
    assert resolve_cluster_address("tcp://other:1", configured) == "tcp://other:1"
    assert resolve_cluster_address("none", configured) is None
    assert resolve_cluster_address(None, None) is None


@pytest.mark.parametrize(
    "address",
    ["head:8786", "tcp://head", "tcp://head:0", "tcp://head:65536", "http://head:1", "tcp://a b:1"],
)
def test_what_is_no_address_is_a_mistake(address: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no cluster"):
        resolve_cluster_address(address, None)
    path = tmp_path / "devices.toml"
    path.write_text(f'cluster = "{address}"\n')
    with pytest.raises(ConfigError, match="a cluster is the scheduler of Dask"):
        load_fleet(path)
