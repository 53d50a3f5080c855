"""Check that the documentation and the commands' help are true: command lines parse, configurations
load, codes and names are the
program's own, and every file that a page names exists."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

import farm
from farm import config, errors, transports
from farm.cli import GROUPS, cli
from farm.inputs.images import read_image
from farm.lab.lab_toml import read_settings
from farm.processes.signals import Stopped
from farm.types import Model, PreprocessSettings, TensorSpec, Verdict

PACKAGE = Path(farm.__file__).parent
ROOT = PACKAGE.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
MANUAL = "\n\n".join(
    page.read_text("utf-8")
    for page in PAGES
    if page.name not in ("CONTRIBUTING.md", "CHANGELOG.md")
)
NAMED_FILES = re.compile(r'"([\w.-]+\.(?:onnx|pt2|npz|txt|key))"')


def blocks(language: str, text: str = MANUAL) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return list(
        dict.fromkeys(re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found)
    )


def configurations(lab: bool = False) -> list[str]:
    """The devices.toml of the pages, or the lab.toml, which say so in their first line."""
    return [text for text in blocks("toml") if text.startswith("# lab.toml") == lab]


def farm_lines(text: str) -> Iterator[str]:
    """The command lines of farm in a text, without comments and redirections."""
    for line in text.splitlines():
        if line.strip().startswith("farm "):
            yield line.strip().partition(" #")[0].partition(" >")[0].partition("   ")[0].strip()


def all_farm_lines() -> list[str]:
    """Return those of the pages' blocks, of the help's examples, and of the comments in
    devices.toml.
    """
    texts = [
        *blocks("sh"),
        (DOCS / "github-actions.yml").read_text("utf-8").replace("${compare:-}", "--baseline main"),
        *(command.help or "" for command in [cli, *cli.commands.values()]),
    ]
    texts += [
        line.lstrip("# ")
        for line in (ROOT / "devices.toml").read_text("utf-8").splitlines()
        if line.startswith("#")
    ]
    return list(dict.fromkeys(line for text in texts for line in farm_lines(text)))


def table(heading: str, text: str = MANUAL) -> list[list[str]]:
    """Return the cells of the first table whose first title is this, without the title row."""
    lines = text[text.index(f"| {heading} |") :].split("\n\n")[0].splitlines()
    return [
        [cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines[2:]
    ]


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    """The module that generates the reference pages."""
    if str(DOCS / "_extensions") not in sys.path:
        sys.path.append(str(DOCS / "_extensions"))
    spec = importlib.util.spec_from_file_location(
        "reference_pages", DOCS / "_extensions" / "reference_pages.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a configuration in or above it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FARM_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path


@pytest.mark.parametrize("command", cli.commands.values(), ids=lambda command: str(command.name))
def test_the_help_of_a_command_names_no_values_of_python(command: click.Command) -> None:
    assert not re.search(
        r"\b(None|True|False)\b|\bUNSET\b", command.get_help(click.Context(command))
    )


@pytest.mark.parametrize("command", cli.commands.values(), ids=lambda command: str(command.name))
def test_a_command_and_its_options_have_help(command: click.Command) -> None:
    assert command.help and command.help.splitlines()[0].endswith((".", ":"))
    without = [
        parameter.name
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert without == []


def test_the_guide_lists_the_commands_there_are() -> None:
    guide = (DOCS / "how-to" / "commands.md").read_text("utf-8")
    sections = {
        section.split("\n")[0]: section
        for section in guide.split("\n## ")[1:]
        if "| command |" in section
    }
    listed = {
        title: tuple(row[0] for row in table("command", section))
        for title, section in sections.items()
    }
    assert listed == {
        title: tuple(f"farm {name}" for name in names) for title, names in GROUPS.items()
    }
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(
        cli.list_commands(click.Context(cli))
    )


@pytest.mark.parametrize("line", all_farm_lines())
def test_a_command_line_of_the_docs_parses(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    cli.commands[name].make_context(name, arguments)


def test_there_are_command_lines_to_parse() -> None:
    lines = all_farm_lines()
    assert len(lines) > 20
    assert {shlex.split(line)[1] for line in lines} == set(cli.commands)


@pytest.fixture(scope="module")
def known_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The devices and profiles of the built-in configuration and of the examples."""
    folder = tmp_path_factory.mktemp("examples")
    examples = [config.load_fleet(config_file(folder, text)) for text in ["", *configurations()]]
    return {
        name
        for fleet in [config.load_fleet(PACKAGE / "devices.toml"), *examples]
        for name in (*fleet.devices, *fleet.profiles)
    }


@pytest.mark.parametrize(
    "line", [line for line in all_farm_lines() if re.search(r"(--device|-d|--profile|-p) ", line)]
)
def test_the_devices_and_profiles_of_the_docs_are_those_of_an_example(
    line: str, known_names: set[str]
) -> None:
    assert set(re.findall(r"(?:--device|-d|--profile|-p) (\S+)", line)) <= known_names


def config_file(folder: Path, text: str) -> Path:
    """A configuration in a folder, with empty files of the names that it speaks of."""
    for name in NAMED_FILES.findall(text):
        (folder / name).touch()
    path = folder / "devices.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", configurations(lab=True))
def test_a_configuration_of_a_lab_loads(text: str, tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(text, "utf-8")
    assert read_settings(tmp_path / "lab.toml").boards


@pytest.mark.parametrize(
    "text", configurations(), ids=lambda text: text.splitlines()[0].split("  ")[0]
)
def test_a_configuration_of_the_docs_loads(text: str, folder: Path) -> None:
    fleet = config.load_fleet(config_file(folder, text))
    assert fleet.devices


def test_the_docs_name_every_transport() -> None:
    assert [row[0].partition(":")[0] for row in table("url")] == list(transports._TRANSPORTS)


def test_the_reference_names_every_built_in_profile(generated: ModuleType) -> None:
    assert "<!-- generated: profiles -->" in (DOCS / "reference" / "profiles.md").read_text("utf-8")
    stated = re.findall(
        r"^\[profiles\.([\w-]+)\]$", (PACKAGE / "profiles.toml").read_text("utf-8"), re.MULTILINE
    )
    rows = table("profile", generated.profiles())
    assert (
        sorted(row[0] for row in rows)
        == sorted(stated)
        == sorted(config.load_fleet(PACKAGE / "devices.toml").profiles)
    )
    assert [row for row in rows if len(row) != 5 or not all(row)] == []


def test_the_reference_describes_every_key_of_devices_toml(generated: ModuleType) -> None:
    from farm.config.schema import Document

    page = generated.expand((DOCS / "reference" / "devices-toml.md").read_text("utf-8"))
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    schema = Document.model_json_schema()
    keys = [key for kind in (schema, *schema["$defs"].values()) for key in kind["properties"]]
    assert sorted(row[0].strip("`") for row in rows) == sorted(keys)
    assert [row for row in rows if len(row) != 4 or len(row[3]) < 10] == []


@pytest.mark.parametrize(
    "page", sorted((DOCS / "reference").glob("*.md")), ids=lambda page: page.stem
)
def test_every_placeholder_of_the_reference_is_filled(page: Path, generated: ModuleType) -> None:
    text = page.read_text("utf-8")
    filled = generated.expand(text)
    assert "<!-- generated:" not in filled
    assert len(filled) >= len(text) + 500 * text.count("<!-- generated:")


def test_the_defaults_that_the_docs_show_are_the_defaults(folder: Path) -> None:
    shown = config.load_fleet(
        config_file(folder, next(text for text in blocks("toml") if "[bench]" in text))
    )
    unset = config.load_fleet(config_file(folder, ""))
    assert (shown.bench.plan, shown.tracker) == (unset.bench.plan, unset.tracker)


def test_a_python_model_of_the_docs_imports(folder: Path) -> None:
    from farm import importers

    [text] = [text for text in blocks("python") if "python:my_models" in text]
    named = re.search(r"python:(\w+):(\w+)", text)
    assert named
    (folder / f"{named[1]}.py").write_text(text)
    imported = importers.import_model(Model("example", named[0]), folder / "cache")
    assert imported.reference(imported.example)[0].shape == (1, 3)


def test_the_reference_lists_the_operators_of_each_importer(generated: ModuleType) -> None:
    text = generated.expand((DOCS / "reference" / "operators.md").read_text("utf-8"))
    onnx, torch, tflite = text.split("\n## ")[1:]
    known, lacking = onnx.split("Not supported:")
    assert all(f"`{name}`" in known for name in ("Conv", "GRU", "Loop", "QLinearConv", "Swish"))
    assert all(f"`{name}`" in lacking for name in ("DeformConv", "RandomNormal", "QuickGelu"))
    assert all(
        f"`{name}`" in torch for name in ("conv2d", "_fft_r2c", "scaled_dot_product_attention")
    )
    assert "`CONV_2D`" in tflite and "`HASHTABLE`" not in tflite


def test_the_exit_codes_of_the_reference_are_those_of_the_errors(generated: ModuleType) -> None:
    kinds = {
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.FarmError)
    }
    codes = {0, *(kind.exit_code for kind in kinds), Stopped(0).exit_code}
    rows = table("code", generated.exit_codes())
    assert {int(row[0].split()[0]) for row in rows} == codes
    assert [row for row in rows if len(row[2]) < 10] == []
    [listed] = re.findall(r"Exit codes: (.*)", " ".join((cli.help or "").split()))
    assert {int(code) for code in re.findall(r"\b\d+\b", listed)} == codes


def test_the_verdicts_of_the_docs_are_all_there_are() -> None:
    rows = table("verdict", (DOCS / "reference" / "verdicts.md").read_text("utf-8"))
    assert [row[0] for row in rows] == [verdict.value for verdict in Verdict]


def test_the_docs_name_every_schema(generated: ModuleType) -> None:
    sources = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    written = {
        f"farm/{kind}/1"
        for kind in re.findall(r'\b(?:\w+_)?(?:document|json_response)\(\s*"(\w+)"', sources)
    } | set(re.findall(r'"(farm/\w+/\d+)"', sources))
    assert set(re.findall(r"`(farm/\w+/\d+)`", MANUAL)) == written
    files = {"farm/int8/1", "farm/float16/1"}
    assert (
        set(re.findall(r"^### (farm/\w+/\d+)$", generated.json_documents(), re.MULTILINE))
        == written - files
    )


def test_the_docs_name_every_variable_of_the_environment() -> None:
    literals = {
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    own = {"FARM_TEST"}  # the mark of the tests' processes
    assert {name for name in literals if re.fullmatch(r"FARM_[A-Z]+", name)} - own == set(
        re.findall(r"`\$(FARM_[A-Z]+)`", MANUAL)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    linked = [
        target for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in target
    ]
    named = re.findall(
        r"(?<![\w./])(?:tools|docs|tests|farm)/[\w.-]+(?:/[\w.-]+)*",
        re.sub(r"\]\([^)]*\)|farm/\w+/\d", "", text),
    )
    missing = [target for target in linked if not (page.parent / target).exists()]
    assert missing + [path for path in named if not (ROOT / path.rstrip(".")).exists()] == []


def test_the_readme_is_short_and_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 200
    assert {line.split()[0] for line in blocks("sh", text)[0].splitlines()} == {
        "tools/demo",
        "tools/test",
    }


def test_the_glossary_is_short_and_has_no_term_twice() -> None:
    terms = re.findall(
        r"^\*\*(.+)\*\*\n: \S", (DOCS / "glossary.md").read_text("utf-8"), re.MULTILINE
    )
    assert 20 < len(terms) == len(set(terms)) <= 40


def test_every_picture_is_shown_and_said_in_words() -> None:
    shown: set[Path] = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        assert not re.findall(r"!\[\s*\]|<img(?![^>]*alt=\"[^\"]{20,}\")", text), (
            "a picture without words"
        )
        shown |= {
            (page.parent / name).resolve() for name in re.findall(r'(?:src|srcset)="([^"]+)"', text)
        }
    assert shown == {path.resolve() for path in DOCS.glob("*.svg")}


def test_the_picture_is_of_the_built_in_farm() -> None:
    picture = ET.parse(DOCS / "dashboard.svg").getroot()
    words = " ".join(
        "".join(text.itertext()).replace("\N{NO-BREAK SPACE}", " ")
        for text in picture.iter("{http://www.w3.org/2000/svg}text")
    )
    fleet = config.load_fleet(PACKAGE / "devices.toml")
    assert [name for name in (*fleet.devices, *fleet.bench.models) if name not in words] == []


def test_the_example_image_is_read_as_a_digit() -> None:
    import onnxruntime

    image = read_image(
        DOCS / "digit.png",
        TensorSpec("image", (1, 1, 8, 8), "float32"),
        PreprocessSettings(channels="L"),
    )
    session = onnxruntime.InferenceSession(PACKAGE / "zoo" / "digits" / "digits.onnx")
    assert session.run(None, {"image": image})[0].argmax() == 8


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_asks_farm(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert f"_FARM_COMPLETE={shell}_complete" in done.output


@pytest.mark.usefixtures("folder")
def test_completion_knows_the_devices() -> None:
    runner = CliRunner(
        env={
            "_FARM_COMPLETE": "bash_complete",
            "COMP_WORDS": "farm deploy --device p",
            "COMP_CWORD": "3",
        }
    )
    assert "plain,pi3" in runner.invoke(cli, prog_name="farm").output
