from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm import config
from farm.errors import ConfigError

MINIMAL = "[devices.{}]\nprofile = 'x86'\nurl = 'local:'\n"


def put(path: Path, name: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MINIMAL.format(name))
    return path


def test_the_file_is_found_in_the_documented_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "here" / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert config.load_fleet().path is None
    for path, name in [
        (tmp_path / "xdg/farm/devices.toml", "xdg"),
        (tmp_path / "here/devices.toml", "above"),
        (deep / "devices.toml", "nearest"),
    ]:
        fleet = config.load_fleet(None) if put(path, name) else None
        assert fleet is not None
        assert (fleet.path, list(fleet.devices)) == (path, [name])
    named = put(tmp_path / "named.toml", "named")
    monkeypatch.setenv("FARM_CONFIG", str(named))
    assert config.load_fleet().path == named
    given = put(tmp_path / "given.toml", "given")
    assert config.load_fleet(given).path == given
    assert list(config.load_fleet(Path("../../../given.toml")).devices) == ["given"]


def test_without_xdg_config_home_the_home_directory_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = put(tmp_path / ".config/farm/devices.toml", "home")
    assert config.load_fleet().path == path


def test_the_built_in_fleet_is_the_shipped_file() -> None:
    package = Path(config.__file__).parents[1]
    root = package.parent / "devices.toml"
    if not root.exists():
        pytest.skip("farm is installed without its repository")
    assert root.read_bytes() == (package / "devices.toml").read_bytes()
    built_in, shipped = config.load_fleet(), config.load_fleet(root)
    assert built_in.path is None
    assert (built_in.devices, built_in.models, built_in.profiles) == (
        shipped.devices,
        shipped.models,
        shipped.profiles,
    )
    assert (built_in.bench, built_in.tracker) == (shipped.bench, shipped.tracker)


def test_a_file_that_cannot_be_read_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"no configuration file {folder}/none.toml"):
        config.load_fleet(Path("none.toml"))
    with pytest.raises(ConfigError, match="is a folder") as caught:
        config.load_fleet(folder)
    assert str(folder / "devices.toml") in caught.value.fix
    (folder / "latin.toml").write_bytes(b"# ok\n# gr\xfc\xdfe\n")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        config.load_fleet(Path("latin.toml"))
    assert caught.value.why == "byte 0xfc in line 2 is not UTF-8"
    with pytest.raises(ConfigError, match="cannot read"):
        config.load_fleet(Path("x" * 5000))
    with pytest.raises(ConfigError, match="no configuration file"):
        config.load_fleet(Path("~nobody-of-this-name/devices.toml"))
    monkeypatch.setenv("FARM_CONFIG", "gone.toml")
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        config.load_fleet()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_told(folder: Path) -> None:
    put(folder / "devices.toml", "x").chmod(0)
    with pytest.raises(ConfigError, match="cannot read"):
        config.load_fleet()


def test_a_byte_order_mark_does_not_matter(folder: Path) -> None:
    (folder / "devices.toml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.format("a").encode())
    assert list(config.load_fleet().devices) == ["a"]


def test_a_working_directory_that_is_gone_does_not_matter(folder: Path) -> None:
    shutil.rmtree(folder)
    assert config.load_fleet().path is None
    with pytest.raises(ConfigError, match=r"no configuration file none\.toml"):
        config.load_fleet(Path("none.toml"))


def test_loading_imports_nothing_heavy() -> None:
    heavy = "tvm", "torch", "onnx", "onnxruntime", "numpy", "rich", "paramiko"
    root = Path(config.__file__).parents[2]
    code = (
        f"import sys; from farm import config; config.load_fleet(); print([x for x in {heavy} "
        "if x in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_file_of_another_user_that_is_found_is_not_used_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /tmp/devices.toml of any user is found by all who work below /tmp."""
    shared = tmp_path / "shared"
    below = shared / "mine"
    below.mkdir(parents=True)
    planted = put(shared / "devices.toml", "planted")
    if os.geteuid() == 0:
        os.chown(planted, 65534, 65534)
    else:
        planted.chmod(0o666)
    monkeypatch.chdir(below)
    with pytest.raises(ConfigError, match="another user could have written it") as caught:
        config.load_fleet()
    assert caught.value.exit_code == 2
    assert "can run any command" in caught.value.why
    assert f"--config {planted}" in caught.value.fix
    assert list(config.load_fleet(planted).devices) == ["planted"]
    monkeypatch.setenv("FARM_CONFIG", str(planted))
    assert list(config.load_fleet().devices) == ["planted"]


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_file_in_a_folder_that_others_may_write_to_is_used_only_if_it_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    put(shared / "devices.toml", "mine")
    shared.chmod(mode)
    monkeypatch.chdir(shared)
    if mode == 0o1777:
        assert list(config.load_fleet().devices) == ["mine"]
        return
    with pytest.raises(ConfigError, match="another user could have written it"):
        config.load_fleet()


def test_a_link_to_a_file_that_others_may_write_is_not_used(tmp_path: Path, folder: Path) -> None:
    put(tmp_path / "elsewhere.toml", "x").chmod(0o666)
    (folder / "devices.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(ConfigError, match="another user could have written it"):
        config.load_fleet()
