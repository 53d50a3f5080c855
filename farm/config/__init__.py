"""devices.toml and the built-in profiles.toml -> Fleet. Every mistake in the configuration is found here, all at once."""

from __future__ import annotations

from farm.config.fleet import BenchSettings, Fleet, TrackerSettings
from farm.config.load import load
from farm.config.urls import Url, parse_url

__all__ = ["BenchSettings", "Fleet", "TrackerSettings", "Url", "load", "parse_url"]
