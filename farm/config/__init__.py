"""The configuration: devices.toml and the built-in profiles.toml, checked and made into a Fleet.

    edit            add devices to the text of a devices.toml, and remove them
    fleet           Fleet: devices, profiles and models by name; BenchSettings, TrackerSettings
    tolerances      the tables `limits`: the largest differences of answers from the reference's
    load            load(): a configuration file to a Fleet
    locate          search for devices.toml, check of its owner, reading
    preprocess      the table `preprocess` of a model, and the named kinds of preprocessing
    profiles        built-in and user-defined profiles, and their inheritance
    schema          all other tables as pydantic models; validation errors in plain words
    model_sources   paths of models and their files, `package:` resources, `python:` functions
    table           Table: the base class of all tables
    toml_parser     TOML parser with line numbers and recovery after errors
    urls            parser of device URLs
    error_messages  descriptions of TOML values and types for messages

`load_fleet(path)` returns the Fleet, or raises one ConfigError that lists every mistake in the
file.
"""

from __future__ import annotations

from farm.config.fleet import BenchSettings, Fleet, TrackerSettings
from farm.config.load import load_fleet, parse_fleet
from farm.config.urls import DeviceUrl, parse_url

__all__ = [
    "BenchSettings",
    "DeviceUrl",
    "Fleet",
    "TrackerSettings",
    "load_fleet",
    "parse_fleet",
    "parse_url",
]
