from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm import config
from farm.config import schema
from farm.errors import ConfigError

Mistakes = Callable[[str], list[str]]
PI3 = '[devices.pi3]\nprofile = "rasp3b"\nurl = "qemu:"\n'
BOX = '[devices.box]\nprofile = "x86"\nurl = "exec:box"\n'
MODEL = "[models.m]\nsource = 'python:a:b'\n"
A_NAME = (
    "a name is made of letters, digits, '_', '-' and '.', and starts with a letter, a digit or '_'"
)

EVERYTHING = """[devices.pi3]
profil = "rasp3b"
url = "rcp://host:1"
tags = ["a", 3,
  "b c"]

[devices."my pi"]
profile = "rasp3"
url = "local:"
options = { deadline_s = "10", threads = 0, nope = 1 }

[devices.pi3]
profile = "x"

[profiles.a]
inherits = "b"
[profiles.b]
inherits = "a"
[profiles.c]
description = '''
[devices.host]
x = 1
'''

[models.m]
source = missing.onnx
labels = "nope.txt"
[models.n]
source = "python:foo"
shapes = { x = [1, -3] }

[bench]
models = ["m", "q",
 "r"]
count = 1.5
minimum_s = inf
count = 3

[tracker]
port = 99999
[foo]
"""
WHERE = """2 devices.pi3.profil
3 devices.pi3.url
4 devices.pi3.tags[1]
5 devices.pi3.tags[2]
7 devices."my pi"
8 devices."my pi".profile
10 devices."my pi".options.deadline_s
10 devices."my pi".options.threads
10 devices."my pi".options.nope
12 devices.pi3
16 profiles.a.inherits
18 profiles.b.inherits
19 profiles.c.target
19 profiles.c.triple
26 models.m.source
27 models.m.labels
29 models.n.source
30 models.n.shapes.x[1]
33 bench.models[1]
34 bench.models[2]
35 bench.count
36 bench.minimum_s
37 bench.count
40 tracker.port
41 foo"""


def test_every_mistake_is_reported_at_once_each_with_file_line_and_key(mistakes: Mistakes) -> None:
    found = [re.fullmatch(r"devices\.toml:(\d+): (.+?): .+", line) for line in mistakes(EVERYTHING)]
    assert sorted(f"{one[1]} {one[2]}" for one in found if one) == sorted(WHERE.splitlines())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[devices.p]\nprofil = "rasp3b"\nurl = "local:"',
            "2: devices.p.profil: unknown key, did you mean 'profile'?",
        ),
        (
            '[devices.p]\nprofile = "rasp3b"',
            '1: devices.p.url: is missing, for example url = "local:"',
        ),
        (PI3 + "tags = 'x'", "4: devices.pi3.tags: expected a list, got 'x'"),
        (PI3 + "tags = {}", "4: devices.pi3.tags: expected a list, got a table"),
        (PI3 + "options = 3", "4: devices.pi3.options: expected a table, got the number 3"),
        (
            PI3 + "options.deadline_s = 0",
            "4: devices.pi3.options.deadline_s: must be more than 0, got the number 0",
        ),
        (
            PI3 + "options.deadline_s = true",
            "4: devices.pi3.options.deadline_s: expected a number, got true",
        ),
        (
            PI3 + "options.threads = 2.0",
            "4: devices.pi3.options.threads: expected a whole number, got the number 2.0",
        ),
        (PI3 + "options.key = ''", "4: devices.pi3.options.key: expected text, got an empty text"),
        (
            BOX,
            (
                "1: devices.box.options: an exec: url needs a command, for example command = "
                '["docker", "exec", "-i", "NAME"]'
            ),
        ),
        (
            BOX + "options.command = []",
            (
                "4: devices.box.options.command: a command has at least one word, for example "
                'command = ["docker", "exec", "-i", "NAME"]'
            ),
        ),
        (
            BOX + "options.command = 'docker exec'",
            "4: devices.box.options.command: expected a list, got 'docker exec'",
        ),
        (
            PI3 + "options.command = ['a']",
            "4: devices.pi3.options: command: only an exec: url has one; did you mean launcher?",
        ),
        (PI3 + "[bench]\nwarmup = -1", "5: bench.warmup: must be at least 0, got the number -1"),
        (PI3 + "[bench]\nmaximum_s = 0.5", "4: bench: minimum_s (1) is more than maximum_s (0.5)"),
        (
            PI3 + "[bench]\nmodels = ['x']",
            (
                "5: bench.models[0]: unknown model 'x', known: digits, mobilenet_v2, resnet18, "
                "resnet50"
            ),
        ),
        (
            "[tracker]\nport = 9200\nport_end = 9100",
            "1: tracker: port_end (9100) must be more than port (9200)",
        ),
        ("devices = 1979-05-27", "1: devices: expected a table, got a date or time"),
        ("[[devices.a]]", "1: devices.a: expected a table, got a list"),
        (
            "[profiles.rasp4]\nagent = 'arm'",
            (
                "2: profiles.rasp4.agent: expected 'x86_64', 'aarch64', 'armv7', 'riscv64', "
                "'x86_64-cuda' or 'aarch64-cuda', got 'arm'"
            ),
        ),
        (
            "[profiles.x]\ntriple = 'x'\ntarget.mcpu = 'y'",
            '3: profiles.x.target.kind: is missing or not text, for example kind = "llvm"',
        ),
        (
            "[profiles.x]\ntriple = 'x'\ntarget.kind = 3",
            '3: profiles.x.target.kind: is missing or not text, for example kind = "llvm"',
        ),
        (
            "[profiles.x]\ninherits = 'rasp5'",
            "2: profiles.x.inherits: unknown profile 'rasp5', did you mean 'rasp4'?",
        ),
        ("[profiles.x]\ninherits = 'x'", "2: profiles.x.inherits: goes in a circle: x -> x"),
        (
            "[devices.g]\nprofile = 'mali'\nurl = 'qemu:'",
            "3: devices.g.url: profile 'mali' has no agent that could be emulated",
        ),
        (
            MODEL + "preprocess = 'imagnet'",
            "3: models.m.preprocess.kind: unknown kind 'imagnet', did you mean 'imagenet'?",
        ),
        (
            MODEL + "preprocess.mean = [1.0, 2.0]",
            (
                "3: models.m.preprocess: mean takes one value, or one for each of the 3 channels, "
                "got 2"
            ),
        ),
        (
            MODEL + "preprocess = { kind = 'grey', std = [1, 1, 1] }",
            "3: models.m.preprocess: std takes one value, got 3",
        ),
        (MODEL + "preprocess = 3", "3: models.m.preprocess: expected a table, got the number 3"),
        (
            "[models.m]\nsource = 'python:a b:c'",
            "2: models.m.source: 'python:a b:c' is not of the form python:package.module:function",
        ),
        ("[devices.-a]\nprofile = 'x86'\nurl = 'local:'", f"1: devices.-a: {A_NAME}"),
        ("x = [1, 2", "1: x: not valid TOML: unclosed array"),
        ("[a\n", "1: a: not valid TOML: expected ']' at the end of a table declaration"),
        (PI3 + "url = 'local:'", "4: devices.pi3.url: defined twice, the first time in line 3"),
    ],
)
def test_a_mistake_is_told_in_plain_words(mistakes: Mistakes, text: str, line: str) -> None:
    assert mistakes(text) == [f"devices.toml:{line}"]


def test_a_missing_file_is_named_with_its_neighbours(mistakes: Mistakes, folder: Path) -> None:
    (folder / "mobilenet.onnx").touch()
    (line,) = mistakes("[models.m]\nsource = 'mobilnet.onnx'\n")
    assert line == (
        f"devices.toml:2: models.m.source: no file {folder}/mobilnet.onnx; that folder has "
        "mobilenet.onnx"
    )
    lines = mistakes(
        "[models.m]\nsource = '.'\nlabels = 'no/labels.txt'\ndataset = 'package:zoo/nothing.npz'\n"
    )
    assert lines[0].endswith(f"models.m.source: {folder} is a folder, not a file")
    assert lines[1].endswith(f"no file {folder}/no/labels.txt: there is no folder {folder}/no")
    assert "farm/zoo/nothing.npz" in lines[2]


def test_a_mistake_takes_one_line_whatever_is_in_the_file(mistakes: Mistakes) -> None:
    lines = mistakes('"a\\nb\\u001b[2J" = 1\n[models.m]\nsource = "no\\nwhere.onnx"\n')
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_what_hangs_on_a_broken_line_is_not_reported_too(mistakes: Mistakes) -> None:
    lines = mistakes(
        "[devices.p]\nprofile = rasp3b\nurl: 'local:'\n[bench]\nmodels = "
        "['m']\n[models.m]\nsource = m.onnx\n"
    )
    assert [line.split(":")[1] for line in lines] == ["2", "3", "7"]


def test_the_error_counts_and_sorts_its_mistakes(folder: Path, mistakes: Mistakes) -> None:
    lines = mistakes(EVERYTHING)
    numbers = [int(line.split(":")[1]) for line in lines]
    assert numbers == sorted(numbers)
    with pytest.raises(ConfigError, match=f"devices.toml has {len(lines)} mistakes") as caught:
        config.load_fleet()
    assert caught.value.exit_code == 2
    (folder / "devices.toml").write_text("x = 1")
    with pytest.raises(ConfigError, match="has a mistake"):
        config.load_fleet()


def test_a_file_elsewhere_is_named_in_full(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("x = 1")
    with pytest.raises(ConfigError) as caught:
        config.load_fleet(other)
    assert caught.value.why.startswith(f"{other}:1: x: unknown key, known: bench, ")


@pytest.mark.parametrize("place", schema._TABLES, ids=lambda place: ".".join(place) or "top")
def test_an_unknown_key_in_any_table_is_told_with_the_keys_there_are(
    place: tuple[str, ...],
) -> None:
    data: dict[str, object] = {"zzz": 1}
    for part in reversed(place):
        data = {part.replace("*", "name"): data}
    _, found = schema.document_and_validation_errors(
        data, schema.ValidationContext(frozenset(), frozenset(), Path())
    )
    words = dict(found)[(*(part.replace("*", "name") for part in place), "zzz")]
    assert (
        words
        == f"unknown key, known: {', '.join(sorted(schema.table_keys(schema._TABLES[place])))}"
    )


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just(datetime.date(2020, 1, 1))
)
leaves = leaves.filter(lambda value: value is not None)
keys = st.sampled_from(
    [
        *(name for table in schema._TABLES.values() for name in schema.table_keys(table)),
        "pi3",
        "kind",
        "x",
        "a b",
    ]
)
documents = st.dictionaries(
    keys,
    st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=20,
    ),
    max_size=4,
)


@settings(suppress_health_check=list(HealthCheck))
@given(documents)
def test_no_value_anywhere_brings_up_the_library_beneath(data: dict[str, object]) -> None:
    from farm.config import profiles

    profiles.resolve_inheritance(data.get("profiles"), profiles.built_in_profile_tables())
    document, found = schema.document_and_validation_errors(
        data, schema.ValidationContext(frozenset({"x"}), frozenset({"x"}), Path())
    )
    assert (document is None) == bool(found)
    for _, words in found:
        assert not re.search(
            r"pydantic|Input should|valid |type=|None|is not accepted here", words
        ), words


shipped = (Path(config.__file__).parents[1] / "devices.toml").read_text(encoding="utf-8")
statements = "".join(
    line + "\n" for line in shipped.splitlines() if line and not line.startswith("#")
)
places = st.integers(0, len(statements))


@settings(suppress_health_check=list(HealthCheck))
@given(
    places,
    st.integers(0, 30),
    st.sampled_from(
        ["", "[", "]", "{", "}", '"', "'", '"""', "=", ".", "\n", "#", ",", "1", "[devices]\n"]
    ),
)
def test_a_slip_of_the_pen_gives_a_fleet_or_mistakes_with_lines(
    folder: Path, place: int, length: int, inserted: str
) -> None:
    text = statements[:place] + inserted + statements[place + length :]
    (folder / "devices.toml").write_text(text)
    try:
        config.load_fleet()
    except ConfigError as error:
        for line in error.why.splitlines():
            found = re.match(r"devices\.toml:(\d+): ", line)
            assert found, line
            assert 1 <= int(found[1]) <= text.count("\n") + 1


def test_mistakes_in_limits_have_their_lines(mistakes: Mistakes) -> None:
    lines = mistakes(
        "[limits.int7]\nmin_snr = 1\n[limits.int8]\nmin_snrr = 1\n[models.m]\nsource = "
        "'python:a:b'\nlimits = { min_cosine = 2 }\n"
    )
    text = "\n".join(lines)
    assert (
        "did you mean 'int8'?" in text
        and "did you mean 'min_snr'?" in text
        and "must be at most 1" in text
    )


@pytest.mark.parametrize("key", ["launcher", "store", "work_dir", "key"])
@pytest.mark.parametrize("escape", ["\\n", "\\u0000", "\\u001b", "\\u202e", "\\u2028"])
def test_no_option_holds_a_control_character(mistakes: Mistakes, key: str, escape: str) -> None:
    """It would begin a line of its own in a unit of systemd, or in what a terminal shows."""
    (mistake,) = mistakes(f'{PI3}[devices.pi3.options]\n{key} = "/a{escape}ExecStartPre=x"\n')
    assert mistake.startswith(
        f"devices.toml:5: devices.pi3.options.{key}: a line break or another control character"
    )


def test_a_key_is_one_word(mistakes: Mistakes) -> None:
    (mistake,) = mistakes(f'{PI3}options = {{ key = "lab -timeout=9" }}\n')
    assert mistake.startswith(
        "devices.toml:4: devices.pi3.options.key: a key is made of ASCII letters"
    )


@pytest.mark.parametrize(
    "line",
    ['triple = "a\\nb"', 'linker = ["a\\nb"]', 'target.mcpu = "a\\nb"', 'target.mattr = ["a\\nb"]'],
)
def test_no_word_for_a_compiler_holds_a_line_break(mistakes: Mistakes, line: str) -> None:
    (mistake,) = mistakes(f'[profiles.mine]\ninherits = "rasp3b"\n{line}\n')
    assert mistake.startswith("devices.toml:3: profiles.mine.") and "a line break" in mistake


@pytest.mark.parametrize("line", ["count", "models", "minimum_s"])
def test_a_number_that_python_does_not_write_is_told(mistakes: Mistakes, line: str) -> None:
    """An integer in hexadecimal digits may be as long as it likes."""
    (mistake,) = mistakes(f"[bench]\n{line} = 0x{'f' * 8000}\n")
    assert mistake.startswith(f"devices.toml:2: bench.{line}: ") and mistake.endswith(
        "a very large number"
    )
