"""Find devices.toml and read its text."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from farm.config.sources import PACKAGE, is_file
from farm.errors import ConfigError

NAME = "devices.toml"
SHIPPED = PACKAGE / NAME


def find(path: Path | None) -> Path | None:
    """The configuration file: `path`, else $FARM_CONFIG, else the nearest in the working directory and its parents, else XDG's.

    None where there is none. A file that was asked for is returned whether it exists or not.
    """
    if path is not None:
        return _absolute(path)
    if named := os.environ.get("FARM_CONFIG"):
        return _absolute(Path(named))
    return next((place for place in _places() if is_file(place)), None)


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except (RuntimeError, OSError):  # an unknown user's home, or a working directory that is gone: reading it will tell
        return path


def _places() -> list[Path]:
    places = []
    with contextlib.suppress(FileNotFoundError):  # the working directory may be gone
        here = Path.cwd()
        places = [folder / NAME for folder in (here, *here.parents)]
    xdg = os.environ.get("XDG_CONFIG_HOME", "")
    with contextlib.suppress(RuntimeError):  # no home directory
        places.append((Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".config") / "farm" / NAME)
    return places


def read(path: Path) -> str:
    """The text of a configuration file. Raises ConfigError where it cannot be read as UTF-8."""
    fix = "name another file with --config FILE or $FARM_CONFIG"
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as exc:
        raise ConfigError(f"no configuration file {path}", "", fix) from exc
    except IsADirectoryError as exc:
        raise ConfigError(f"{path} is a folder, not a configuration file", "", f"did you mean {path / NAME}?") from exc
    except OSError as exc:
        raise ConfigError(f"cannot read {path}", exc.strerror or str(exc), fix) from exc
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        why = f"byte 0x{exc.object[exc.start]:02x} in line {line} is not UTF-8"
        raise ConfigError(f"{path} is not UTF-8 text", why, f"save {path.name} in UTF-8") from exc


def shown(path: Path | None) -> str:
    """A configuration file as messages name it: short where it lies in the working directory."""
    if path is None:
        return f"built-in {NAME}"
    with contextlib.suppress(FileNotFoundError, ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
