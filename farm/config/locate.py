"""Find devices.toml and read its text.

A devices.toml can run code on this machine and on the boards. A file that was found, rather than
named by the user, is therefore used only if no other user could have written it (see
`farm.ownership`). These keys are code or lead to it:

    - `devices.*.options.launcher`: a command in front of the agent's, here or on the board.
    - `devices.*.options.command`: a command on this machine, for `exec:` urls.
    - `models.*.source` and `module` as `python:module:function`: imported and called, with the
      working directory on the path.
    - `models.*.source` of formats that are programs (.pt2, .pt, .pth): see the output of
      `farm check`.
    - `profiles.*.linker`: a program that is run. `profiles.*.target` and `triple` determine the
      code that is generated.
    - `devices.*.url`: the host to connect to, through ~/.ssh/config, whose answers are parsed.
      `options.key` and `key_file` are sent to it.
    - `devices.*.options.store` and `work_dir`, `[tracker]` and `store`: where files are written,
      and which address is listened on.

No file includes another, and `profiles.*.inherits` names profiles of the same file or built-in
ones. The files that it names are data: models, labels, samples, images. They are read from any path
and with any owner, because the author of the configuration could name any file.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from farm import ownership
from farm.config.model_sources import PACKAGE, is_accessible_file
from farm.errors import ConfigError
from farm.regular_files import check_not_special_file

FILE_NAME = "devices.toml"
SHIPPED = PACKAGE / FILE_NAME


def find_config(path: Path | None) -> Path | None:
    """Return the path of the configuration file, or None if there is none.

    It is `path`, else $FARM_CONFIG, else the nearest devices.toml in the working directory and its
    parents, else that of XDG. A file named explicitly is returned whether it exists or not. Raises
    ConfigError for a file that was found and that another user could have written.
    """
    if path is not None:
        return _absolute(path)
    if named := os.environ.get("FARM_CONFIG"):
        return _absolute(Path(named))
    found = next((place for place in _places() if is_accessible_file(place)), None)
    if found is not None:
        _refuse_foreign(found)
    return found


def _refuse_foreign(path: Path) -> None:
    """Raise ConfigError if another user of this machine could have written the file."""
    if why := ownership.foreign_writer(path):
        quoted = shlex.quote(str(path))
        raise ConfigError(
            f"{path} was found, and another user could have written it",
            f"{why}; a {FILE_NAME} can run any command, so it is not used unasked",
            f"read it; if you trust it, name it: --config {quoted}, or export FARM_CONFIG={quoted}",
        )


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    # an unknown user's home, or a deleted working directory: reading the file will fail
    except (RuntimeError, OSError):
        return path


def _places() -> list[Path]:
    """Return the paths to search, in order."""
    places = []
    with contextlib.suppress(FileNotFoundError):  # the working directory may have been deleted
        here = Path.cwd()
        places = [folder / FILE_NAME for folder in (here, *here.parents)]
    xdg = os.environ.get("XDG_CONFIG_HOME", "")
    with contextlib.suppress(RuntimeError):  # no home directory
        places.append(
            (Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".config") / "farm" / FILE_NAME
        )
    return places


def read_config_text(path: Path) -> str:
    """Return the text of a configuration file. Raises ConfigError if it cannot be read as UTF-8."""
    fix = "name another file with --config FILE or $FARM_CONFIG"
    try:
        check_not_special_file(path)
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as exc:
        raise ConfigError(f"no configuration file {path}", "", fix) from exc
    except IsADirectoryError as exc:
        raise ConfigError(
            f"{path} is a folder, not a configuration file", "", f"did you mean {path / FILE_NAME}?"
        ) from exc
    except OSError as exc:
        raise ConfigError(f"cannot read {path}", exc.strerror or str(exc), fix) from exc
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        why = f"byte 0x{exc.object[exc.start]:02x} in line {line} is not UTF-8"
        raise ConfigError(f"{path} is not UTF-8 text", why, f"save {path.name} in UTF-8") from exc


def config_display_name(path: Path | None) -> str:
    """Return a configuration file's name for messages.

    The path is relative if the file is in the working directory or below it.
    """
    if path is None:
        return f"built-in {FILE_NAME}"
    with contextlib.suppress(FileNotFoundError, ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
