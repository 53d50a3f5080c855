"""The report in a real browser: Chromium, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import PROFILE, many, timed

from farm.processes import subprocesses
from farm.views import html_report, profile_roofline_data
from farm.views.report_content import build_report

DESK, PHONE = {"width": 1400, "height": 1000}, {"width": 360, "height": 740}
CHROMIUM = subprocesses.first_installed_program("chromium", "chromium-browser", "google-chrome")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path, profile = (
        tmp_path_factory.mktemp("report") / name for name in ("report.html", "profile.json")
    )
    profile.write_text(json.dumps(PROFILE))
    before = [timed("pi5", "resnet18", 1), timed("host", "resnet18", 0, 3.0)]
    rooflines = [profile_roofline_data.read_profile_json(profile)]
    found = build_report(
        many(),
        title="Nightly",
        made_at="2026-03-20T01:02",
        baseline="release",
        before=before,
        rooflines=rooflines,
    )
    path.write_text(html_report.render_page(found), "utf-8")
    return path.as_uri()


@pytest.fixture
def shown(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens the page; in the end nothing was asked of a network, and the console is empty."""
    contexts, asked, said = [], [], []

    def show(fragment: str = "", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": DESK, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address + fragment)
        return page

    yield show
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert said == []


@pytest.mark.parametrize(
    ("size", "scheme"), [(DESK, "light"), (PHONE, "dark")], ids=["desk-light", "phone-dark"]
)
def test_the_accessibility_checker_finds_nothing(
    shown: Callable[..., Any], size: dict[str, int], scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = shown(viewport=size, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    found = Axe().run(page).response
    assert len(found["passes"]) > 20
    assert [
        (one["impact"], one["id"], one["nodes"][0]["html"]) for one in found["violations"]
    ] == []


def test_names_that_mean_harm_are_shown_and_do_none(shown: Callable[..., Any]) -> None:
    page = shown()
    assert page.title() == "Nightly"
    assert "<script>document.title" in page.inner_text("main")


@pytest.mark.parametrize("fragment", ["", "#m1d2", "#comparison"])
def test_on_a_phone_only_tables_scroll_sideways(shown: Callable[..., Any], fragment: str) -> None:
    page = shown(fragment, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_every_link_leads_to_something(shown: Callable[..., Any]) -> None:
    page = shown()
    targets = page.eval_on_selector_all(
        "a[href]", "found => found.map(one => one.getAttribute('href'))"
    )
    assert len(targets) > 10
    assert [target for target in targets if not page.query_selector(target)] == []


def test_a_cell_of_the_matrix_opens_its_detail_by_keyboard(shown: Callable[..., Any]) -> None:
    page = shown()
    link = page.locator(".matrix a[href='#m1d2']")
    assert not page.locator("#m1d2").is_visible()
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'm1d2'")
    assert page.locator("#m1d2").is_visible()
    assert "step at" in page.inner_text("#m1d2")


def test_the_first_tab_offers_to_skip_to_the_content(shown: Callable[..., Any]) -> None:
    page = shown()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'content'")


def test_the_theme_is_the_systems_until_the_button_says_otherwise(
    shown: Callable[..., Any],
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light, page = shown(color_scheme="light").evaluate(ground), shown(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert (page.evaluate(ground), page.inner_text("#theme")) == (light, "Dark theme")
    page.reload()
    assert page.evaluate(ground) == light


def test_without_scripts_the_page_says_the_same(shown: Callable[..., Any]) -> None:
    page = shown(java_script_enabled=False)
    assert not page.locator("#theme").is_visible()
    page.locator("details summary").first.click()
    assert page.locator("details .detail").first.is_visible()


def test_charts_fill_their_cells(shown: Callable[..., Any]) -> None:
    """Drawn, and neither empty nor outside."""
    page = shown()
    boxes = [box for chart in page.locator("td.chart svg").all() if (box := chart.bounding_box())]
    assert len(boxes) > 5
    assert all(box["width"] > 100 and box["height"] > 10 for box in boxes)


def test_a_record_of_many_runs_makes_a_page_of_a_sensible_size(tmp_path: Path) -> None:
    runs = [
        timed(f"board{device}", f"model{model}", number, 1.0 + device)
        for device in range(4)
        for model in range(3)
        for number in range(20)
    ]
    text = html_report.render_page(build_report(runs, title="", made_at=""))
    assert len(text.encode()) < 3e6 * len(runs) / 20_000 + 60_000
