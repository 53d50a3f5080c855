"""Questions on a terminal: who is asked what, when, and what is remembered. Each in a process of
its own that has a real terminal.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from timeouts import LIMIT_S

from farm.processes.deadline import Deadline

# A session leader without a terminal takes the first one that it opens. `ask` puts questions and
# gives the answers, in order.
BEGIN = """
import os, time
os.close(os.open(os.ttyname(0), os.O_RDWR))
from farm.prompts import Question, TerminalPrompts
terminal = TerminalPrompts()
def ask(*questions):
    for number, question in enumerate(questions):
        terminal.put(str(number), question)
    found = {}
    while len(found) < len(questions):
        found.update(terminal.answers())
        time.sleep(0.01)
    return [found[str(number)] for number in range(len(questions))]
"""


@dataclass
class Dialogue:
    """What a script says on its terminal, and what is typed there."""

    child: subprocess.Popen[bytes]
    descriptor: int
    heard: str = ""

    def hears(self, words: str) -> None:
        """Wait for words that have not been heard before."""
        deadline = Deadline(LIMIT_S)
        while words not in self.heard:
            assert not deadline.expired, f"no {words!r} in {self.heard!r}"
            if select.select([self.descriptor], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # EIO: the script has ended
                    self.heard += os.read(self.descriptor, 4096).decode()
        self.heard = self.heard.partition(words)[2]

    def type(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.descriptor)[3] & termios.ECHO)


@contextlib.contextmanager
def dialogue(script: str) -> Iterator[Dialogue]:
    ours, theirs = pty.openpty()
    lines = BEGIN + script + "\nprint('end', flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", lines],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Dialogue(child, ours)
        assert child.wait(LIMIT_S) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def test_who_asks_the_same_gets_the_same_answer() -> None:
    script = """
with terminal.lent():
    print(ask(Question("A: "), Question("B: "), Question("A: ")))
    print(ask(Question("B: ")))
"""
    with dialogue(script) as it:
        it.hears("A: ")
        it.type("one\n")
        it.hears("B: ")
        it.type("two\n")
        it.hears("['one', 'two', 'one']")
        it.hears("['two']")
        it.hears("end")


def test_what_is_hidden_is_not_shown_and_the_rest_is() -> None:
    with dialogue(
        'with terminal.lent():\n print(ask(Question("A: "), Question("B: ", hidden=False)) == '
        '["one", "two"])'
    ) as it:
        assert it.echoes
        it.hears("A: ")
        assert not it.echoes
        it.type("one\n")
        it.hears("B: ")
        assert it.echoes
        assert "one" not in it.heard
        it.type("two\n")
        it.hears("two")
        it.hears("True")
        it.hears("end")


def test_a_refused_answer_is_asked_for_again_but_not_for_ever() -> None:
    script = """
with terminal.lent():
    wrong = None
    for _ in range(6):
        (wrong,) = ask(Question("A: ", wrong=wrong))
        print(f"<{wrong}>")
"""
    with dialogue(script) as it:
        for word in ("one", "two", "three"):
            it.hears("A: ")
            it.type(f"{word}\n")
            it.hears(f"<{word}>")
        for _ in range(3):
            it.hears("<None>")
        it.hears("end")
        assert "A: " not in it.heard


def test_who_still_has_the_refused_answer_gets_the_new_one() -> None:
    script = """
with terminal.lent():
    print(ask(Question("A: ")), ask(Question("A: ", wrong="one")), ask(Question("A: ", wrong="one")))
"""  # noqa: E501
    with dialogue(script) as it:
        it.hears("A: ")
        it.type("one\n")
        it.hears("refused, once more: A: ")
        it.type("two\n")
        it.hears("['one'] ['two'] ['two']")
        it.hears("end")


def test_answers_that_are_good_once_are_asked_for_each_time() -> None:
    with dialogue('with terminal.lent():\n print(ask(*[Question("code: ", once=True)] * 2))') as it:
        for code in ("1", "2"):
            it.hears("code: ")
            it.type(f"{code}\n")
        it.hears("['1', '2']")
        it.hears("end")


@pytest.mark.parametrize("keys", ["\n", "\x04"], ids=["nothing", "the end of the input"])
def test_no_answer_is_remembered_as_such(keys: str) -> None:
    with dialogue('with terminal.lent():\n print(ask(*[Question("A: ")] * 2))') as it:
        it.hears("A: ")
        it.type(keys)
        it.hears("[None, None]")
        it.hears("end")


def test_a_question_that_is_withdrawn_makes_room_for_the_next() -> None:
    script = """
with terminal.lent(lambda: print("pause"), lambda: print("resume")):
    terminal.put("first", Question("A: "))
    terminal.put("second", Question("B: "))
    assert terminal.answers() == []
    terminal.withdraw("first")
    while not (found := terminal.answers()):
        pass
    print(found)
"""
    with dialogue(script) as it:
        it.hears("pause")
        it.hears("A: ")
        it.hears("resume")
        it.hears("pause")
        it.hears("B: ")
        it.type("two\n")
        it.hears("resume")
        it.hears("[('second', 'two')]")
        it.hears("end")
        assert it.echoes


def test_a_block_that_ends_in_the_middle_of_a_question_leaves_the_terminal_as_it_was() -> None:
    with dialogue(
        'with terminal.lent():\n terminal.put("us", Question("A: "))\n terminal.answers()'
    ) as it:
        it.hears("A: ")
        it.hears("end")
        assert it.echoes


def test_what_a_server_asks_cannot_move_the_cursor() -> None:
    with dialogue(r'with terminal.lent(): print(ask(Question("\x1b[2J\x07name\r\n: ")))') as it:
        it.hears(r"\x1b[2J\x07name\r\n: ")
        it.type("us\n")
        it.hears("['us']")
        it.hears("end")


def test_nobody_is_asked_where_nobody_can_answer() -> None:
    script = """
print("not lent", ask(Question("A: ")))
if os.fork() == 0:
    os.setpgid(0, 0)
    with terminal.lent():
        print("in the background", ask(Question("B: ")), flush=True)
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.setsid()
    with terminal.lent():
        print("without a terminal", ask(Question("C: ")), flush=True)
    os._exit(0)
os.wait()
"""
    with dialogue(script) as it:
        it.hears("not lent [None]")
        it.hears("in the background [None]")
        it.hears("without a terminal [None]")
        it.hears("end")
