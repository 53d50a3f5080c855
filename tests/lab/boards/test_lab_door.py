"""The lab's door, behind a real sshd: two users, a stranger, and the boards that they lease."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import forked_commands
import pytest
from accepting import accepting
from lab_door import SETTINGS, Door, Echo, door
from lab_process import Board
from timeouts import LIMIT_S, wait_until

from farm.errors import LinkError
from farm.lab_client.control_client import LabClient
from farm.tracker.protocol import MAGIC


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with door(tmp_path_factory.mktemp("door")) as one:
        one.add("alice")
        one.add("bob")
        one.add("pi5-07", "--board", "--port", "20007")
        yield one


@pytest.fixture
def echo(served: Door) -> Iterator[Echo]:
    with_board = Echo(served.lab, f"kind{time.monotonic_ns()}")
    yield with_board
    with_board.close()
    with_board.board.wire.close()


def error(done: subprocess.CompletedProcess[bytes]) -> dict[str, str]:
    """The error of a door, for programs; people read the same."""
    body: dict[str, str] = json.loads(done.stdout)["error"]
    assert done.returncode != 0
    assert f"error: {body['what']}\n" in done.stderr.decode()
    return body


def test_each_user_is_who_the_key_says(served: Door) -> None:
    for user in ("alice", "bob"):
        assert served.ask(user, do="hello")["ok"] | {"tracker": 0} == {
            "protocol": 1,
            "you": user,
            "admin": False,
            "tracker": 0,
        }


def test_a_stranger_is_not_let_in(served: Door) -> None:
    done = served.ssh("mallory", "api")
    assert done.returncode == 255 and b"Permission denied" in done.stderr


@pytest.mark.parametrize(
    "words", [[], ["sh"], ["api; id"], ["board 1 2"], ["board -1"], ["board 01"], ["x" * 5000]]
)
def test_a_key_gives_no_shell_and_nothing_but_the_door(served: Door, words: list[str]) -> None:
    assert error(served.ssh("alice", *words))["what"] == "the lab's door does not do that"


def test_a_key_forwards_nothing(served: Door) -> None:
    done = served.ssh("alice", "-N", "-L", f"0:127.0.0.1:{served.lab.port}", said=b"")
    assert done.returncode != 0
    done = served.ssh("alice", "-N", "-R", "20001:127.0.0.1:1")
    assert done.returncode != 0 and b"forwarding" in done.stderr


def test_an_owner_has_a_session_with_the_board(served: Door, echo: Echo) -> None:
    lease = served.lease("alice", echo.board.kind)
    with served.session("alice", lease) as session:
        assert session.head["ok"]["board"] == echo.board.name
        assert session.head["ok"]["match_key"] == echo.board.match_key
        data = os.urandom(1 << 20)
        session.say(data)
        assert session.hear(len(data)) == data
    wait_until(lambda: echo.serving == 0, "the board sees the end")
    with served.session("alice", lease) as session:  # the next one
        session.say(b"again")
        assert session.hear(5) == b"again"
    served.ask("alice", do="end", lease=lease)


def test_each_sees_and_ends_only_what_is_theirs(served: Door, echo: Echo) -> None:
    lease = served.lease("alice", echo.board.kind)
    assert error(served.ssh("bob", f"board {lease}"))["what"] == f"lease {lease} is not yours"
    for do in ("end", "extend", "keep", "heartbeat"):
        answer = served.ask("bob", do=do, lease=lease, by_s=60)
        assert answer["error"]["what"] == f"lease {lease} is not yours"
    assert "key" not in served.ask("bob", do="lease", lease=lease)["ok"]["lease"]
    assert "key" in served.ask("alice", do="lease", lease=lease)["ok"]["lease"]
    assert served.ask("bob", do="expel", user="alice")["error"]["kind"] == "UsageError"
    assert served.ask("bob", do="speak-for", user="alice")["error"]["kind"] == "UsageError"
    assert served.ask("alice", do="end", lease=lease)["ok"]["lease"]["state"] == "released"
    answer = error(served.ssh("alice", f"board {lease}"))
    assert answer["what"] == f"lease {lease} has ended"


def test_a_lease_that_is_revoked_ends_its_session_within_a_second(served: Door, echo: Echo) -> None:
    lease = served.lease("alice", echo.board.kind)
    with served.session("alice", lease) as session:
        session.say(b"x")
        assert session.hear(1) == b"x"
        with served.lab.client() as admin:
            begin = time.monotonic()
            admin.ask("end", lease=lease, why="a new fan")
            assert session.hear(1) == b""
            took = time.monotonic() - begin
        assert session.words() == f"lease {lease} has ended: revoked (a new fan)\n"
        assert session.child.returncode == 4
    wait_until(lambda: echo.serving == 0, "the board sees the end")
    assert took < 1.0


def test_a_session_goes_on_without_the_server_and_its_lease_ends_it_after_a_restart(
    tmp_path: Path,
) -> None:
    with door(tmp_path / "own") as own:
        own.add("alice")
        echo = Echo(own.lab)
        lease = own.lease("alice")
        with own.session("alice", lease) as session:
            half = os.urandom(1 << 20)
            session.say(half)
            own.lab.kill()  # with half of an upload under way
            assert session.hear(len(half)) == half
            session.say(half)
            assert session.hear(len(half)) == half
            own.lab.start()
            session.say(b"still")
            assert session.hear(5) == b"still"
            with own.lab.client() as admin:
                admin.ask("end", lease=lease, why="over")
                assert session.hear(1) == b""
            assert "revoked (over)" in session.words()
        echo.close()


def test_a_client_that_is_killed_leaves_the_board_to_the_next(served: Door, echo: Echo) -> None:
    lease = served.lease("alice", echo.board.kind)
    with served.session("alice", lease) as session:
        session.say(b"x")
        assert session.hear(1) == b"x"
        session.child.send_signal(signal.SIGKILL)
    wait_until(lambda: echo.serving == 0, "the board sees the end")
    served.ask("alice", do="end", lease=lease)


def test_a_user_who_is_removed_loses_leases_sessions_and_the_way_in(
    served: Door, echo: Echo
) -> None:
    served.add("carol")
    served.add("carolyn")  # who stays
    lease = served.lease("carol", echo.board.kind)
    with served.session("carol", lease) as session:
        session.say(b"x")
        assert session.hear(1) == b"x"
        done = served.lab.farm("user", "remove", "carol", "--keys", str(served.keys))
        assert done.stdout == f"carol: a key removed, ended: lease {lease}\n"
        assert session.hear(1) == b"" and "the user was removed" in session.words()
    assert served.ssh("carol", "api").returncode == 255
    # as a channel of a connection that is older than that
    environment = {**os.environ, "SSH_ORIGINAL_COMMAND": "api"}
    command = [sys.executable, "-m", "farm", "lab", "door", "carol"]
    command += ["--socket", str(served.lab.socket), "--keys", str(served.keys)]
    late = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT_S)
    assert error(late)["what"] == "carol is no user of this lab"


def test_the_environment_of_a_client_starts_no_code_where_sshd_takes_it(tmp_path: Path) -> None:
    marker, evil = tmp_path / "ran", tmp_path / "evil"
    evil.mkdir()
    program = f"import pathlib; pathlib.Path({str(marker)!r}).touch()"
    for name in ("sitecustomize", "farm", "json"):
        (evil / f"{name}.py").write_text(program)
    with door(tmp_path / "own", "AcceptEnv PYTHON*") as own:
        own.add("alice")
        taken = f"SetEnv=PYTHONPATH={evil} PYTHONHOME={evil} PYTHONWARNINGS=error::evil.x"
        question = b'{"do": "hello"}\n'
        done = own.ssh("alice", f"-o{taken}", "api", said=question)
        assert json.loads(done.stdout)["ok"]["you"] == "alice", done.stderr
        assert not marker.exists()


def test_a_user_of_the_door_is_no_account_of_the_labs_machine_unless_told(served: Door) -> None:
    public = served.key_of("nobody").with_suffix(".pub")
    words = ("user", "add", "nobody", "--keys", str(served.keys), "--key", str(public))
    refused = served.lab.farm(*words)
    assert refused.returncode == 2
    assert "error: nobody is also the name of an account of this machine\n" in refused.stderr
    nonsense = served.lab.farm("user", "add", "carla", *words[3:], "--account")
    assert "this machine has no account carla" in nonsense.stderr
    assert served.lab.farm(*words, "--account").returncode == 0
    assert served.ask("nobody", do="hello")["ok"]["you"] == "nobody"
    told = served.keys.read_text()
    served.keys.write_text(told.replace(" --account", ""))  # as if the account came later
    what = error(served.ssh("nobody", "api"))["what"]
    assert what == "nobody is also the name of an account of the lab's machine"
    assert served.lab.farm("user", "remove", "nobody", "--keys", str(served.keys)).returncode == 0


def test_only_the_servers_account_speaks_for_others(served: Door) -> None:
    with served.lab.client() as client:
        assert client.ask("speak-for", user="alice") == {"you": "alice"}
        assert client.ask("hello")["admin"] is False  # as alice is, from then on


def test_the_key_of_a_board_reaches_no_unix_socket(served: Door) -> None:
    """Else it would reach the control socket, as the server's own account."""
    here = served.lab.folder / "forwarded"
    command = served.command("pi5-07", "-N", "-L", f"{here}:{served.lab.socket}")
    forwarding = subprocess.Popen(command)
    try:
        wait_until(lambda: here.exists() or forwarding.poll() is not None, "the forwarding")
        with pytest.raises(LinkError):
            LabClient(here)
    finally:
        forwarding.kill()
        forwarding.wait()


def test_the_key_of_a_board_makes_no_unix_socket(served: Door) -> None:
    """Else it could be in the place of the lab's own, while that is away."""
    place = served.lab.folder / "made"
    refused = served.ssh("pi5-07", "-N", "-R", f"{place}:127.0.0.1:1")
    assert b"remote port forwarding failed" in refused.stderr
    assert not place.exists()


@pytest.mark.parametrize("place", ["127.0.0.1:20008", "0.0.0.0:20007", "[::1]:20007", "*:20007"])
def test_the_key_of_a_board_listens_on_its_port_of_loopback_only(served: Door, place: str) -> None:
    refused = served.ssh("pi5-07", "-N", "-R", f"{place}:127.0.0.1:1")
    assert b"remote port forwarding failed" in refused.stderr


def test_the_key_of_a_board_connects_to_the_tracker_only(served: Door) -> None:
    for port, answer in ((served.lab.port, True), (served.sshd.port, False)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            here = free.getsockname()[1]
        command = served.command("pi5-07", "-N", "-L", f"127.0.0.1:{here}:127.0.0.1:{port}")
        forwarding = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            with wait_until(lambda here=here: connection(here), "the forwarding") as client:
                client.settimeout(LIMIT_S)
                client.sendall(MAGIC)
                with contextlib.suppress(ConnectionResetError):
                    assert (client.recv(len(MAGIC)) == MAGIC) is answer
        finally:
            forwarding.kill()
            forwarding.wait()


def connection(port: int) -> socket.socket | None:
    with contextlib.suppress(OSError):
        return socket.create_connection(("127.0.0.1", port))
    return None


@pytest.mark.parametrize("words", [["api"], ["board 1"], [""], ["sh"], ["-s", "sftp"]])
def test_the_key_of_a_board_is_not_the_key_of_a_person(served: Door, words: list[str]) -> None:
    """Else who has the board leases all others."""
    refused = served.ssh("pi5-07", *words)
    what = json.loads(refused.stdout)["error"]["what"]  # a subsystem has no other output
    assert what == "the key of a board opens its tunnel, and nothing else"
    assert refused.returncode != 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("AllowStreamLocalForwarding yes", "could make Unix sockets in the place of the lab's"),
        ("AllowStreamLocalForwarding remote", "could make Unix sockets in the place of the lab's"),
        ("GatewayPorts yes", "would listen beyond loopback"),
    ],
)
def test_a_board_is_not_let_in_where_its_key_could_do_more(
    served: Door, tmp_path: Path, setting: str, words: str
) -> None:
    file = tmp_path / "sshd_config"
    file.write_text(f"{setting}\n{SETTINGS}AuthorizedKeysFile {served.keys}\n")
    add = ("user", "add", "pi5-08", "--key", f"{served.key_of('pi5-08')}.pub", "--keys")
    done = served.lab.farm(*add, str(served.keys), "--board", "--sshd-config", str(file))
    assert done.returncode == 2 and words in done.stderr
    assert f"in {file}, Match User " in done.stderr
    assert "pi5-08" not in served.keys.read_text()


def test_what_sshd_lacks_is_said(served: Door, tmp_path: Path) -> None:
    file = tmp_path / "sshd_config"
    file.write_text("AllowStreamLocalForwarding no\nPubkeyAuthentication no\n")
    keys = tmp_path / "keys"
    add = ("user", "add", "pi5-08", "--key", f"{served.key_of('pi5-08')}.pub", "--keys")
    done = served.lab.farm(*add, str(keys), "--board", "--sshd-config", str(file))
    assert done.returncode == 0
    for words in (
        f"sshd does not read {keys}: Match User ",
        f"AuthorizedKeysFile {keys}\n",
        "PubkeyAuthentication yes\n",
        "ClientAliveInterval 8\n",
    ):
        assert words in done.stderr
    assert "could not be checked" not in done.stderr
    assert served.tried("add", "dave", "--key", f"{served.key_of('dave')}.pub").stderr == ""
    file.write_text("a word that sshd does not know\n")
    key = f"{served.key_of('erin')}.pub"
    add = ("user", "add", "erin", "--key", key, "--keys", str(keys), "--sshd-config", str(file))
    assert "sshd's settings could not be checked: " in served.lab.farm(*add).stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_board_that_names_another_service_gives_nobody_a_way_there(
    served: Door, host: str
) -> None:
    """A board says where it serves: it could name a database of the lab's machine."""
    with socket.create_server(("127.0.0.1", 0)) as database:
        heard: list[bytes] = []

        def serve(connection: socket.socket) -> None:
            with connection:
                connection.sendall(b"a secret banner")
                heard.append(connection.recv(1 << 10))

        with accepting(database, serve):
            board = Board(served.lab.port, f"evil-{host}", database.getsockname()[1], host)
            lease = served.lease("alice", board.kind)
            answer = served.ssh("alice", f"board {lease}")
        assert "cannot be reached" in error(answer)["what"]
        assert b"secret" not in answer.stdout + answer.stderr
        served.ask("alice", do="end", lease=lease)


KEYLESS = """
import contextlib, socket, struct
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 10)
            connection.sendall(struct.pack("<ii", 0xFF271, 7) + b"server:a secret")
            connection.recv(1 << 10)
"""


@contextlib.contextmanager
def keyless_server() -> Iterator[int]:
    """A server of TVM's RPC on the lab's loopback that takes every key, of another process."""
    with subprocess.Popen([sys.executable, "-c", KEYLESS], stdout=subprocess.PIPE) as child:
        assert child.stdout
        try:
            yield int(child.stdout.readline())
        finally:
            child.kill()


def test_a_board_that_names_another_server_of_rpc_gives_nobody_a_way_there(served: Door) -> None:
    with keyless_server() as port:
        board = Board(served.lab.port, "evil-rpc", port)
        lease = served.lease("alice", board.kind)
        answer = served.ssh("alice", f"board {lease}")
        refused = error(answer)
        assert refused["what"] == f"the board {board.name} of lease {lease} cannot be reached"
        assert refused["why"] == (
            f"127.0.0.1:{port} is not its own address: "
            f"what listens at port {port} there is not what offers it"
        )
        assert b"secret" not in answer.stdout + answer.stderr
        served.ask("alice", do="end", lease=lease)


def test_an_address_of_lab_toml_is_taken_for_the_boards(tmp_path: Path) -> None:
    with keyless_server() as port:
        inventory = f'[lab.boards.far]\nkind = "pi5"\naddress = "127.0.0.1:{port}"\n'
        with door(tmp_path / "own", inventory=inventory) as own:
            own.add("alice")
            board = Board(own.lab.port, "pi5", port)
            with own.session("alice", own.lease("alice")) as session:
                assert session.head["ok"]["board"] == "far"
                assert session.head["ok"]["match_key"] == board.match_key


def test_a_lab_that_is_away_is_said_by_the_door(tmp_path: Path) -> None:
    with door(tmp_path / "own") as own:
        own.add("alice")
        own.lab.kill()
        assert error(own.ssh("alice", "api"))["what"] == "the lab's server is away"
        own.lab.start()


def test_nothing_but_sshd_listens_and_only_on_loopback_unless_told(served: Door) -> None:
    listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    server = served.lab.child
    assert server
    ours = [line.split()[3] for line in listening.splitlines() if f"pid={server.pid}," in line]
    assert ours and all(re.fullmatch(r"127\.0\.0\.1:\d+", place) for place in ours)


def test_lists_and_ends_of_leases_are_there_from_outside(served: Door, echo: Echo) -> None:
    """Of alice's command line, which finds the door by --lab, and her key by her configuration."""
    (served.sshd.home / ".ssh" / "config").write_text(f"IdentityFile {served.key_of('alice')}\n")
    url = served.sshd.url.replace("ssh", "lab", 1)

    def farm(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        elsewhere = {"HOME": str(served.sshd.home), "FARM_DATA": "/nowhere", "SSH_AUTH_SOCK": ""}
        return forked_commands.run(["lab", *words], {**os.environ, **elsewhere, **environment})

    lease = served.lease("alice", echo.board.kind)
    waiting = served.ask("alice", do="request", kind=echo.board.kind, for_s=60.0)
    number = waiting["ok"]["lease"]["lease"]
    who = json.loads(farm("who", "--lab", url, "--json").stdout)["leases"]
    assert [(one["lease"], one["owner"]) for one in who] == [(lease, "alice")]
    queue = json.loads(farm("queue", "--json", FARM_LAB_DOOR=url).stdout)["leases"]
    assert [(one["lease"], one["queue"]["place"]) for one in queue] == [(number, 1)]
    assert farm("release", str(number), "--lab", url).stdout == f"lease {number}: cancelled\n"
    served.ask("alice", do="end", lease=lease)
    both = farm("who", "--lab", url, "--socket", str(served.lab.socket))
    assert both.returncode == 2 and "use one of them" in both.stderr
    # What is said goes before the environment: so root asks
    here = farm("events", "--socket", str(served.lab.socket), FARM_LAB_DOOR="lab://nowhere.invalid")
    assert here.returncode == 0, here.stderr
    gone = farm("release", "9999", "--lab", url)
    assert f"farm lab leases (from here with --lab {url})" in gone.stderr
    config = served.sshd.home / ".ssh" / "config"
    config.write_text(f"IdentityFile {served.key_of('mallory')}\nIdentitiesOnly yes\n")
    stranger = farm("who", "--lab", url)
    assert "refuses the login" in stranger.stderr
    assert "farm lab user add NAME --key FILE" in stranger.stderr
    assert "ssh-copy-id" not in stranger.stderr
    wrong = farm("who", "--lab", "lab://farm@lab/pi5")
    assert wrong.returncode == 2 and "is no door of a lab" in wrong.stderr
