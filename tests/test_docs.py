"""What the README and the commands' help say is so: command lines parse, configurations load, codes and names are the program's own."""

from __future__ import annotations

import ast
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import farm
from farm import config, errors, transports
from farm.cli import cli
from farm.importers.images import read_image
from farm.interrupts import Stopped
from farm.types import Model, Preprocess, TensorSpec, Verdict

PACKAGE = Path(farm.__file__).parent
ROOT = PACKAGE.parent
README = (ROOT / "README.md").read_text("utf-8")
NAMED_FILES = re.compile(r'"([\w.-]+\.(?:onnx|pt2|npz|txt))"')


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def farm_lines(text: str) -> Iterator[str]:
    """The command lines of farm in a text, without comments and redirections."""
    for line in text.splitlines():
        if line.strip().startswith("farm "):
            yield line.strip().partition(" #")[0].partition(" >")[0].partition("   ")[0].strip()


def all_farm_lines() -> list[str]:
    """Those of the README's blocks, of the help's examples, and of the comments in devices.toml."""
    texts = [
        *blocks("sh"),
        (ROOT / "docs" / "github-actions.yml").read_text("utf-8").replace("${compare:-}", "--baseline main"),
        *(command.help or "" for command in [cli, *cli.commands.values()]),
    ]
    texts += [line.lstrip("# ") for line in (ROOT / "devices.toml").read_text("utf-8").splitlines() if line.startswith("#")]
    return list(dict.fromkeys(line for text in texts for line in farm_lines(text)))


def table(heading: str) -> list[list[str]]:
    """The cells of the README's table whose first title is this, without the title row."""
    lines = README[README.index(f"| {heading} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a configuration in or above it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FARM_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path


@pytest.mark.parametrize("command", cli.commands.values(), ids=lambda command: str(command.name))
def test_the_help_of_a_command_names_no_values_of_python(command: click.Command) -> None:
    assert not re.search(r"\b(None|True|False)\b|\bUNSET\b", command.get_help(click.Context(command)))


@pytest.mark.parametrize("command", cli.commands.values(), ids=lambda command: str(command.name))
def test_a_command_and_its_options_have_help(command: click.Command) -> None:
    assert command.help and command.help.splitlines()[0].endswith((".", ":"))
    without = [parameter.name for parameter in command.params if isinstance(parameter, click.Option) and not parameter.help]
    assert without == []


def test_the_readme_lists_the_commands_there_are() -> None:
    assert [row[0] for row in table("command")] == [f"farm {name}" for name in cli.list_commands(click.Context(cli))]


@pytest.mark.parametrize("line", all_farm_lines())
def test_a_command_line_of_the_docs_parses(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    cli.commands[name].make_context(name, arguments)


def test_there_are_command_lines_to_parse() -> None:
    lines = all_farm_lines()
    assert len(lines) > 20
    assert {shlex.split(line)[1] for line in lines} == set(cli.commands)


@pytest.mark.parametrize("line", [line for line in all_farm_lines() if re.search(r"(--device|-d|--profile|-p) ", line)])
def test_the_devices_and_profiles_of_the_docs_are_those_of_an_example(line: str, folder: Path) -> None:
    examples = [config.load(config_file(folder, text)) for text in ["", *blocks("toml")]]
    shipped = config.load(PACKAGE / "devices.toml")
    known = {name for fleet in [shipped, *examples] for name in (*fleet.devices, *fleet.profiles)}
    assert set(re.findall(r"(?:--device|-d|--profile|-p) (\S+)", line)) <= known


def config_file(folder: Path, text: str) -> Path:
    """A configuration in a folder, with empty files of the names that it speaks of."""
    for name in NAMED_FILES.findall(text):
        (folder / name).touch()
    path = folder / "devices.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", blocks("toml"), ids=lambda text: text.splitlines()[0].split("  ")[0])
def test_a_configuration_of_the_readme_loads(text: str, folder: Path) -> None:
    fleet = config.load(config_file(folder, text))
    assert fleet.devices


def test_the_readme_names_every_transport() -> None:
    assert [row[0].partition(":")[0] for row in table("url")] == list(transports._TRANSPORTS)


def test_the_readme_names_every_built_in_profile() -> None:
    [listed] = re.findall(r"Built-in profiles: (.*?)\. What", README, re.DOTALL)
    assert sorted(re.sub(r"\(.*?\)", "", listed, flags=re.DOTALL).replace(",", " ").split()) == sorted(
        config.load(PACKAGE / "devices.toml").profiles
    )


def test_the_defaults_that_the_readme_shows_are_the_defaults(folder: Path) -> None:
    shown = config.load(config_file(folder, next(text for text in blocks("toml") if "[bench]" in text)))
    unset = config.load(config_file(folder, ""))
    assert (shown.bench.plan, shown.tracker) == (unset.bench.plan, unset.tracker)


def test_a_python_model_of_the_readme_imports(folder: Path) -> None:
    from farm import importers

    [text] = [text for text in blocks("python") if "python:my_models" in text]
    named = re.search(r"python:(\w+):(\w+)", text)
    assert named
    (folder / f"{named[1]}.py").write_text(text)
    imported = importers.load(Model("example", named[0]), folder / "cache")
    assert imported.reference(imported.example)[0].shape == (1, 3)


def test_the_exit_codes_of_the_readme_are_those_of_the_errors() -> None:
    kinds = {error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, errors.FarmError)}
    codes = {0, *(kind.exit_code for kind in kinds), Stopped(0).exit_code}
    assert {int(row[0].split()[0]) for row in table("code")} == codes
    [listed] = re.findall(r"Exit codes: (.*)", " ".join((cli.help or "").split()))
    assert {int(code) for code in re.findall(r"\b\d+\b", listed)} == codes


def test_the_verdicts_of_the_readme_are_all_there_are() -> None:
    assert [row[0] for row in table("verdict")] == [verdict.value for verdict in Verdict]


def test_the_readme_names_every_schema() -> None:
    sources = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    written = {f"farm/{kind}/1" for kind in re.findall(r'\bdocument\(\s*"(\w+)"', sources)} | set(re.findall(r'"(farm/\w+/\d+)"', sources))
    assert set(re.findall(r"`(farm/\w+/\d+)`", README)) == written


def test_the_readme_names_every_variable_of_the_environment() -> None:
    literals = {
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {name for name in literals if re.fullmatch(r"FARM_[A-Z]+", name)} == set(re.findall(r"`\$(FARM_[A-Z]+)`", README))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_file_that_a_page_names_is_there(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    named = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    named += re.findall(r"(?<![\w./])(?:tools|docs|tests|farm)/[\w.-]+(?:/[\w.-]+)*", re.sub(r"farm/\w+/\d", "", text))
    assert [path for path in named if not (ROOT / path.rstrip(".")).exists()] == []


def test_every_picture_is_shown_and_said_in_words() -> None:
    pages = [ROOT / "README.md", ROOT / "docs" / "dashboard.md"]
    shown: set[Path] = set()
    for page in pages:
        text = page.read_text("utf-8")
        assert not re.findall(r"!\[\s*\]|<img(?![^>]*alt=\"[^\"]{20,}\")", text), "a picture without words"
        shown |= {(page.parent / name).resolve() for name in re.findall(r'(?:src|srcset)="([^"]+)"', text)}
    assert shown == {path.resolve() for path in (ROOT / "docs").glob("*.svg")}


def test_the_picture_is_of_the_built_in_farm() -> None:
    picture = ET.parse(ROOT / "docs" / "dashboard.svg").getroot()
    words = " ".join(
        "".join(text.itertext()).replace("\N{NO-BREAK SPACE}", " ") for text in picture.iter("{http://www.w3.org/2000/svg}text")
    )
    fleet = config.load(PACKAGE / "devices.toml")
    assert [name for name in (*fleet.devices, *fleet.bench.models) if name not in words] == []


def test_the_example_image_is_read_as_a_digit() -> None:
    import onnxruntime

    image = read_image(ROOT / "docs" / "digit.png", TensorSpec("image", (1, 1, 8, 8), "float32"), Preprocess(channels="L"))
    session = onnxruntime.InferenceSession(PACKAGE / "zoo" / "digits" / "digits.onnx")
    assert session.run(None, {"image": image})[0].argmax() == 8


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_asks_farm(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert f"_FARM_COMPLETE={shell}_complete" in done.output


@pytest.mark.usefixtures("folder")
def test_completion_knows_the_devices() -> None:
    runner = CliRunner(env={"_FARM_COMPLETE": "bash_complete", "COMP_WORDS": "farm deploy --device p", "COMP_CWORD": "3"})
    assert "plain,pi3" in runner.invoke(cli, prog_name="farm").output
