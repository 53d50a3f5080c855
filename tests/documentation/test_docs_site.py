"""Check the documentation as a site: it builds strictly, and a real browser shows it without a
network, on a desk and on a phone.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest

from farm.cli import cli
from farm.errors import FarmError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline

DOCS = Path(__file__).resolve().parents[2] / "docs"
BUILD_S = 240.0
DESK, PHONE = {"width": 1400, "height": 1000}, {"width": 360, "height": 740}
CHROMIUM = subprocesses.first_installed_program("chromium", "chromium-browser", "google-chrome")
# Each kind of page: pictures, wide code, a table, a generated table, definitions. Signatures are
# the theme's own.
KINDS = (
    "dashboard",
    "tutorials/first-board",
    "how-to/commands",
    "reference/exit-codes",
    "glossary",
)

in_a_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"
)


def built(source: Path, output: Path) -> str:
    """Build a folder of pages as tools/docs does. Raises FarmError for a warning."""
    options = [
        "--quiet",
        "--fresh-env",
        "--fail-on-warning",
        "--builder",
        "html",
        "--conf-dir",
        str(DOCS),
    ]
    command = [
        sys.executable,
        "-m",
        "sphinx",
        *options,
        "--doctree-dir",
        f"{output}-doctrees",
        str(source),
        str(output),
    ]
    return subprocesses.run_program(
        command, deadline=Deadline(BUILD_S), what="building the documentation"
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation's folder, built here if tools/test has not just built it."""
    if there := os.environ.get("FARM_BUILT_DOCS"):
        return Path(there)
    folder = tmp_path_factory.mktemp("site")
    built(DOCS, folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on loopback: the search of a page that is a file may not read the other pages."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def shown(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens a page; in the end nothing was asked of another server, and the console is empty."""
    contexts, asked, said = [], [], []

    def show(name: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": DESK, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{address}{name}.html")
        return page

    yield show
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
    assert said == []


def test_mistakes_on_a_page_fail_the_build(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text(
        "# Page\n\n[one](gone.md)\n[two](index.md#nowhere)\n\n```{nonsense}\n```\n"
    )
    with pytest.raises(FarmError) as caught:
        built(tmp_path, tmp_path / "output")
    assert [
        word for word in ("gone.md", "nowhere", "nonsense") if word not in str(caught.value)
    ] == []


def test_the_reference_has_every_option_of_every_command(site: Path) -> None:
    text = (site / "reference" / "commands.html").read_text("utf-8")
    options = [
        (name, flag)
        for name, command in cli.commands.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
        for flag in option.opts
        if flag.startswith("--")
    ]
    assert len(options) > 100
    assert [
        (name, flag)
        for name, flag in options
        if f'id="cmdoption-farm-{name}{flag.removeprefix("-")}"' not in text
    ] == []


def test_no_page_asks_anything_of_a_network(site: Path) -> None:
    fetched = re.compile(
        r'<(?:script|img|link|source|iframe)\b[^>]*?(?:src|href|srcset)="((?:https?:)?//[^"]+)"'
    )
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    assert {url for page in pages for url in fetched.findall(page.read_text("utf-8"))} == set()


@in_a_browser
@pytest.mark.parametrize(
    ("size", "scheme"), [(DESK, "light"), (PHONE, "dark")], ids=["desk-light", "phone-dark"]
)
@pytest.mark.parametrize("name", KINDS)
def test_the_accessibility_checker_finds_nothing_serious(
    shown: Callable[..., Any], name: str, size: dict[str, int], scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(shown(name, viewport=size, color_scheme=scheme)).response
    assert len(found["passes"]) > 20
    serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in serious] == []


@in_a_browser
def test_every_page_shows_its_pictures_and_does_not_scroll_sideways_on_a_phone(
    shown: Callable[..., Any], site: Path, address: str
) -> None:
    page = shown("index", viewport=PHONE, color_scheme="dark")
    wide, broken, pictures = {}, {}, 0
    for path in sorted(site.rglob("*.html")):
        name = str(path.relative_to(site))
        page.goto(f"{address}{name}")
        if (beyond := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
            wide[name] = beyond
        images = page.eval_on_selector_all(
            "main img, article img", "all => all.map(one => [one.src, one.naturalWidth])"
        )
        pictures += len(images)
        if missing := [address for address, width in images if not width]:
            broken[name] = missing
    assert (wide, broken) == ({}, {})
    assert pictures >= 4


@in_a_browser
def test_the_site_is_light_or_dark_as_the_system_is(shown: Callable[..., Any]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = (
        shown("index", color_scheme=scheme).evaluate(ground) for scheme in ("light", "dark")
    )
    assert light != dark


@in_a_browser
def test_the_search_finds_a_command(shown: Callable[..., Any]) -> None:
    page = shown("index")
    page.fill("input[name=q] >> nth=0", "bisect")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results ul.search li a")
    assert any(
        "bisect" in href
        for href in page.eval_on_selector_all(
            "#search-results a", "all => all.map(one => one.href)"
        )
    )
