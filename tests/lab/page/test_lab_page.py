"""The lab's page in a real browser: Chromium, with a real server that has 1,000 boards and 50
leases.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_http import Paged, paged
from lab_process import Board
from timeouts import wait_until
from tracker_processes import PENDING, REQUEST, Wire

from farm.lab.entities import Reservation, ReservationRequest
from farm.lab.storage.lab_database import BoardUsePeriod
from farm.lab_page.gantt import gantt_rows, reserved_rows
from farm.lab_page.history import hourly_use_digits, use_by_owner
from farm.processes import subprocesses

DESK, PHONE = {"width": 1400, "height": 1000}, {"width": 360, "height": 740}
BOARDS, KINDS, LEASES, WAITING = 1000, 10, 50, 5
NASTY = '<img src=x onerror="document.title=1">\x1b[31m\u202e{{7*7}}'
CHROMIUM = subprocesses.first_installed_program("chromium", "chromium-browser", "google-chrome")
in_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"
)
INVENTORY = (
    '[lab]\n[lab.boards.quiet-1]\nkind = "k1"\naddress = "192.168.7.7:9090"\ntags = ["quiet", '
    '"fan"]\n'
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextlib.contextmanager
def busy_lab(boards: int) -> Iterator[Paged]:
    """A lab of so many boards, one whose kind means harm, and one that is away; of 50 leases, and
    some that wait.
    """
    with paged(inventory=INVENTORY) as one:
        wires = [Wire(one.lab.port) for _ in range(KINDS)]
        for index, wire in enumerate(wires):
            wire.register(f"k{index}", 9000)
            for number in range(boards // KINDS):
                wire.put(f"k{index}", f"k{index}:{number}", 9000 + number)
        harmful = Board(one.lab.port, NASTY)
        ended = threading.Event()
        alive = threading.Thread(target=keep_alive, args=([*wires, harmful.wire], ended))
        alive.start()
        for number in range(LEASES):
            wanted = {"kind": f"k{number % KINDS}", "for_s": 3600, "class": "ci"}
            assert one.ask("POST", "/api/1/leases", wanted, unix=True).status == 201
        for _ in range(WAITING):
            wanted = {"kind": "k1", "for_s": 60, "count": 101, "labels": {"why": NASTY}}
            assert (
                one.ask("POST", "/api/1/leases", wanted, unix=True).json["lease"]["state"]
                == "queued"
            )
        yield one
        ended.set()
        alive.join()
        harmful.wire.close()
        for wire in wires:
            wire.close()


@pytest.fixture(scope="module")
def large() -> Iterator[Paged]:
    with busy_lab(BOARDS) as one:
        yield one


@pytest.fixture(scope="module")
def sixty_boards() -> Iterator[Paged]:
    """The same pages with fewer lines: the accessibility checker visits each."""
    with busy_lab(LEASES + KINDS) as one:
        yield one


def keep_alive(wires: list[Wire], ended: threading.Event) -> None:
    """Ask which offers are open, every 2 s, as boards do."""
    while not ended.wait(2):
        for wire in wires:
            wire.ask([PENDING])


@pytest.fixture
def small() -> Iterator[Paged]:
    with paged() as one:
        yield one


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; in the end nothing was asked of elsewhere, and the console has nothing but lost
    connections and refused input.
    """
    contexts, asked, said = [], [], []

    def show(url: str, context: Any = None, **options: Any) -> Any:
        if context is None:
            context = browser.new_context(**{"viewport": DESK, **options})
            contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(url)
        return page

    yield show
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:"))] == []
    assert [text for text in said if "ERR_" not in text and "status of 400" not in text] == []


def row_of(page: Any, board: str) -> Any:
    return page.locator("tr", has=page.get_by_role("link", name=board, exact=True))


def requested(served: Paged, **more: Any) -> int:
    return int(
        served.ask("POST", "/api/1/leases", {"kind": "pi5", "for_s": 600, **more}, unix=True).json[
            "lease"
        ]["lease"]
    )


@in_browser
@pytest.mark.parametrize("path", ["/", "/use", "/board?name=quiet-1"])
@pytest.mark.parametrize(
    ("size", "scheme"), [(DESK, "light"), (PHONE, "dark")], ids=["desk-light", "phone-dark"]
)
def test_the_accessibility_checker_finds_nothing(
    sixty_boards: Paged, opened: Callable[..., Any], path: str, size: Any, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = opened(sixty_boards.link(), viewport=size, color_scheme=scheme)
    page.goto(sixty_boards.url + path)
    found = Axe().run(page).response
    assert len(found["passes"]) > 15
    assert [
        (one["impact"], one["id"], one["nodes"][0]["html"]) for one in found["violations"]
    ] == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@in_browser
def test_a_thousand_boards_and_what_they_are_called_are_shown_and_do_no_harm(
    large: Paged, opened: Callable[..., Any]
) -> None:
    page = opened(large.url)
    assert page.locator(".boards tbody tr").count() == BOARDS + 2
    assert page.locator(".boards tbody tr", has_text="leased").count() == LEASES
    assert page.title() == "Lab" and page.locator("img").count() == 0
    kinds = page.locator("#content h3").all_inner_texts()
    assert any('<img src=x onerror="document.title=1">\\u202e{{7*7}}' in kind for kind in kinds), (
        kinds
    )
    assert "quiet-1" in page.inner_text("#hands") and "away" in page.inner_text("#hands")
    assert page.locator("#queue tbody tr").count() == WAITING
    assert "101 of k1 wanted, 100 connected" in page.inner_text("#queue")
    page.get_by_role("link", name=re.compile("onerror")).first.click()
    page.wait_for_selector("#facts-title")
    assert "<img" in page.title() and page.locator("img").count() == 0


@in_browser
def test_without_javascript_all_is_there_and_the_buttons_work(
    small: Paged, opened: Callable[..., Any]
) -> None:
    board = Board(small.lab.port)
    page = opened(small.link(), java_script_enabled=False)
    page.get_by_label("For").fill("30m")
    page.get_by_role("button", name="Lease").click()
    assert row_of(page, board.name).locator("td").first.inner_text().endswith("leased")
    before = small.get("/api/1/leases").json["leases"][0]["ends_at"]
    page.get_by_role("button", name="Extend lease 1 by an hour").click()
    assert small.get("/api/1/leases").json["leases"][0]["ends_at"] == pytest.approx(before + 3600)
    page.get_by_role("button", name="Extend lease 1 by an hour").click()
    assert page.locator("h1").inner_text() == "2h30m is too long for a lease of class interactive"
    assert "its longest is 2h" in page.inner_text("main") and "What to do: " in page.inner_text(
        "main"
    )
    page.get_by_role("link", name="Back to the lab").click()
    page.get_by_role("button", name="Give back lease 1").click()
    assert "You have no boards" in page.inner_text("#mine")
    assert small.get("/api/1/leases").json["leases"] == []


@in_browser
def test_who_is_not_known_reads_only(small: Paged, opened: Callable[..., Any]) -> None:
    Board(small.lab.port)
    number = requested(small)
    key = small.ask("GET", f"/api/1/leases/{number}", unix=True).json["lease"]["key"]
    page = opened(small.url)
    assert page.locator("#content button").count() == 0 and key not in page.content()
    assert "farm lab page" in page.inner_text("#mine")
    known = opened(small.link())
    assert (
        key in known.content()
        and known.get_by_role("button", name=f"Give back lease {number}").is_visible()
    )


@in_browser
def test_two_tabs_follow_the_lab_and_keep_the_focus(
    small: Paged, opened: Callable[..., Any]
) -> None:
    board = Board(small.lab.port)
    first = opened(small.link())
    second = opened(small.url, first.context)
    for page in (first, second):
        page.get_by_text("live", exact=True).wait_for()
        page.get_by_role("link", name=board.name).focus()
    number = requested(small)
    for page in (first, second):
        row_of(page, board.name).get_by_text("leased").wait_for()
        page.get_by_role("button", name=f"Give back lease {number}").wait_for()
        assert page.evaluate("document.activeElement.textContent") == board.name
    first.get_by_role("button", name=f"Give back lease {number}").click()
    row_of(second, board.name).get_by_text("free").wait_for()


@in_browser
def test_a_session_of_tvms_client_which_makes_no_event_is_shown_too(
    small: Paged, opened: Callable[..., Any]
) -> None:
    board, client = Board(small.lab.port), Wire(small.lab.port)
    page = opened(small.url)
    page.get_by_text("live", exact=True).wait_for()
    assert client.ask([REQUEST, "pi5", "", 1])[0] == 0
    row_of(page, board.name).get_by_text("in session").wait_for()
    board.offer()
    row_of(page, board.name).get_by_text("free").wait_for()


@in_browser
def test_a_new_board_appears_and_one_that_left_goes(
    small: Paged, opened: Callable[..., Any]
) -> None:
    first = Board(small.lab.port)
    page = opened(small.url)
    page.get_by_text("live", exact=True).wait_for()
    second = Board(small.lab.port, "pi4", 9091)
    row_of(page, second.name).wait_for()
    first.wire.close()
    row_of(page, first.name).wait_for(state="detached")


@in_browser
def test_a_page_whose_connection_was_cut_catches_up(
    small: Paged, opened: Callable[..., Any]
) -> None:
    board = Board(small.lab.port)
    page = opened(small.url)
    page.get_by_text("live", exact=True).wait_for()
    page.context.set_offline(True)
    page.evaluate("1")
    number = requested(small)
    page.context.set_offline(False)
    row_of(page, board.name).get_by_text("leased").wait_for()
    small.lab.options = ("--page", str(small.port))
    small.lab.kill()
    page.get_by_text("not connected; trying again").wait_for()
    small.lab.start()
    small.ask("DELETE", f"/api/1/leases/{number}", unix=True)
    page.get_by_text("live", exact=True).wait_for()
    page.get_by_text("lease-released").wait_for()
    assert row_of(page, board.name).count() == 0  # it has not come back


@in_browser
def test_the_day_and_a_boards_page_show_who_had_it(
    small: Paged, opened: Callable[..., Any]
) -> None:
    board = Board(small.lab.port)
    number = requested(small)
    page = opened(f"{small.url}/use")
    assert page.locator(".day rect").bounding_box()["width"] > 2
    assert (
        page.locator(".day rect").count() == 1
        and f"lease {number}" in page.locator(".day rect title").inner_html()
    )
    page.get_by_role("link", name=board.name).click()
    page.wait_for_selector("#facts-title")
    assert "leased" in page.inner_text("dl") and "lease-granted" in page.inner_text("main")


def test_the_pages_answer_at_a_thousand_boards(large: Paged) -> None:
    for path in ("/", "/use", "/board?name=quiet-1", "/metrics", "/api/1/boards"):
        started = time.monotonic()
        assert large.get(path).status == 200
        assert time.monotonic() - started < 10, (
            path
        )  # of a busy machine; a figure is in docs/how-to/lab.md


def test_a_change_of_one_board_sends_one_row(large: Paged) -> None:
    version = re.search(r'data-version="([^"]+)"', large.get("/").text)
    assert version
    client = Wire(large.lab.port)
    assert client.ask([REQUEST, "k9", "", 1])[0] == 0
    changed = wait_until(
        lambda: large.get(f"/changes?version={version[1]}").json["parts"].keys() - {"mine"},
        "a change",
    )
    assert len([name for name in changed if name.startswith("b")]) == 1
    assert large.get("/changes?version=old.1").json["parts"] is None
    client.close()


def test_an_unknown_board_has_a_page_that_says_so(small: Paged) -> None:
    answer = small.get("/board?name=pi9", Accept="text/html")
    assert answer.status == 404 and "there is no board &#39;pi9&#39;" in answer.text
    assert (
        "default-src 'none'" in answer.headers["content-security-policy"]
        and answer.headers["x-frame-options"] == "DENY"
    )


def test_the_numbers_count_boards_leases_and_the_queue(small: Paged) -> None:
    Board(small.lab.port)
    number = requested(small)
    requested(small)
    small.ask("DELETE", f"/api/1/leases/{number}", unix=True)
    text = small.get("/metrics").text
    for line in (
        'farm_lab_boards{kind="pi5",use="leased"} 1.0',
        'farm_lab_queue{class="interactive"} 0.0',
        'farm_lab_leases{class="interactive"} 1.0',
        'farm_lab_grants_total{kind="pi5",class="interactive"} 2.0',
        "# TYPE farm_lab_grants_total counter",
        'farm_lab_events_total{what="lease-released"} 1.0',
        'farm_tracker_boards{key="pi5"} 1.0',
    ):
        assert line in text.splitlines(), text


def stretch(board: str, owner: str, since: float, until: float | None) -> BoardUsePeriod:
    return BoardUsePeriod(board, "pi5", owner, since, until, 1)


def test_a_day_has_a_bar_for_each_stretch_within_it() -> None:
    hour, now = 3600.0, 100 * 3600.0
    found = [
        stretch("a", "eve", now - 30 * hour, now - 23 * hour),
        stretch("a", "bob", now - hour, None),
        stretch("b", "bob", 0, hour),
    ]
    [row] = gantt_rows(found, now - 24 * hour, now)
    assert (row.board, row.used_s) == ("a", 2 * hour)
    assert [(one.at, one.width, one.stretch.owner) for one in row.bars] == [
        (0, 60, "eve"),
        (1380, 60, "bob"),
    ]
    assert row.bars[0].colour != row.bars[1].colour


def reserved(number: int, owner: str, kind: str, starts_at: float, for_s: float) -> Reservation:
    return Reservation(number, ReservationRequest(owner, kind, starts_at, for_s), "key", 0.0)


def test_the_day_to_come_has_a_bar_for_each_reservation_below_those_that_it_overlaps() -> None:
    hour, now = 3600.0, 100 * 3600.0
    found = [
        reserved(1, "eve", "pi5", now - hour, 2 * hour),
        reserved(2, "bob", "pi5", now + 23 * hour, 4 * hour),
        reserved(3, "bob", "pi5", now + 0.5 * hour, hour),
        reserved(4, "bob", "pi4", now + 25 * hour, hour),
        reserved(5, "eve", "pi4", now + 2 * hour, hour),
    ]
    rows = reserved_rows(found, now)
    shown = [
        (row.kind, [(bar.reservation.number, bar.at, bar.width) for bar in row.bars])
        for row in rows
    ]
    assert shown == [
        ("pi4", [(5, 120, 60)]),
        ("pi5", [(1, 0, 60), (2, 1380, 60)]),
        ("pi5", [(3, 30, 60)]),
    ]
    assert rows[0].bars[0].colour == rows[1].bars[0].colour != rows[2].bars[0].colour


def test_a_bar_of_a_moment_can_be_seen_and_stays_within_the_day() -> None:
    now = 100 * 3600.0
    [row] = gantt_rows([stretch("a", "bob", now - 1, None)], now - 24 * 3600, now)
    assert row.bars[0].width >= 5 and row.bars[0].at + row.bars[0].width <= 1440
    assert row.used_s == 1


def test_the_hours_of_a_board_say_how_much_of_each_it_was_used() -> None:
    hour, now = 3600.0, 100 * 3600.0
    found = [
        stretch("a", "bob", now - 2 * hour, None),
        stretch("a", "bob", now - 40 * hour, now - 23.5 * hour),
        stretch("b", "bob", 0, 1),
    ]
    assert hourly_use_digits(found[:2], now) == {"a": "4" + 21 * "0" + "99"}
    assert [
        (one.owner, one.board_s, one.leases)
        for one in use_by_owner(found[:2], now - 24 * hour, now)
    ] == [("bob", 2.5 * hour, 1)]


def test_the_page_needs_its_library_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from farm.commands.servers.lab import lab
    from farm.errors import UsageError

    for name in [name for name in sys.modules if name.startswith(("aiohttp", "farm.lab_page"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.setenv("FARM_DATA", str(tmp_path))
    with pytest.raises(UsageError, match="the lab's page needs a library") as raised:
        lab.main(["serve", "--page", "0"], standalone_mode=False)
    assert raised.value.fix == "pip install 'tvm-farm[lab]', or leave the page out"
