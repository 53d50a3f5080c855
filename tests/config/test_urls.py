from __future__ import annotations

import re

import pytest

from farm.config import DeviceUrl, parse_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("local:", DeviceUrl("local")),
        ("qemu:", DeviceUrl("qemu")),
        ("rpc://pi3.local:9090", DeviceUrl("rpc", "pi3.local", 9090)),
        ("rpc://[::1]:9090", DeviceUrl("rpc", "::1", 9090)),
        ("rpc://10.0.0.7:65535/", DeviceUrl("rpc", "10.0.0.7", 65535)),
        ("tracker://lab:9190/rasp3b", DeviceUrl("tracker", "lab", 9190, key="rasp3b")),
        ("ssh://pi@board", DeviceUrl("ssh", "board", None, "pi")),
        ("ssh://pi@[fe80::1]:2222", DeviceUrl("ssh", "fe80::1", 2222, "pi")),
        ("ssh://board", DeviceUrl("ssh", "board")),
        ("ssh://first.last+lab@board", DeviceUrl("ssh", "board", None, "first.last+lab")),
        ("adb:", DeviceUrl("adb")),
        ("adb:HT7A1B200123", DeviceUrl("adb", serial="HT7A1B200123")),
        ("adb:192.168.7.5:5555", DeviceUrl("adb", serial="192.168.7.5:5555")),
        ("adb:[fe80::1%usb0]:5555", DeviceUrl("adb", serial="[fe80::1%usb0]:5555")),
        (
            "adb:adb-1A2B-x._adb-tls-connect._tcp",
            DeviceUrl("adb", serial="adb-1A2B-x._adb-tls-connect._tcp"),
        ),
        ("exec:", DeviceUrl("exec")),
        ("exec:my-box_1.2", DeviceUrl("exec", name="my-box_1.2")),
        ("exec:namespace/pod", DeviceUrl("exec", name="namespace/pod")),
    ],
)
def test_a_good_url_is_taken_apart(text: str, url: DeviceUrl) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("local", "did you mean 'local:'?"),
        ("board", "names no transport"),
        ("", "names no transport"),
        ("trakcer://lab:9190/x", "did you mean 'tracker'?"),
        ("local:x", "nothing may follow"),
        ("local://", "nothing may follow"),
        ("qemu:aarch64", "nothing may follow"),
        ("rpc:host:9090", "no host"),
        ("rpc://:9090", "no host"),
        ("rpc://host", "no port"),
        ("rpc://host:", "no port"),
        ("ssh://pi@host:", "no port"),
        ("rpc://host:0", "from 1 to 65535"),
        ("rpc://host:65536", "from 1 to 65535"),
        ("rpc://host:00655350", "from 1 to 65535"),
        ("rpc://host:-1", "from 1 to 65535"),
        ("rpc://host:http", "from 1 to 65535"),
        ("rpc://host:9090/key", "nothing after the host and port"),
        ("rpc://me@host:9090", "knows no users"),
        ("rpc://host:9090?timeout=3", "takes no '?'"),
        ("rpc://host:9090#x", "takes no '?'"),
        ("rpc://ho st:9090", "space"),
        ("rpc://host\n:9090", "unprintable"),
        ("rpc://[::1:9090", "IPv6"),
        ("rpc://a,b:9090", "no host name"),
        ("tracker://lab:9190", "no key"),
        ("tracker://lab:9190/", "no key"),
        ("tracker://lab:9190/a/b", "has a '/'"),
        ("tracker://lab/rasp3b", "no port"),
        ("ssh://pi:raspberry@host", "password"),
        ("ssh://@host", "no user"),
        ("ssh://$(touch${IFS}x)@host", "no user that a url may name"),
        ("ssh://a;b@host", "no user that a url may name"),
        ("ssh://a`b`@host", "no user that a url may name"),
        ("ssh://-oProxyCommand=x@host", "no user that a url may name"),
        ("ssh://a|b@host", "no user that a url may name"),
        ("ssh://-host", "no host name"),
        ("rpc://-host:9090", "no host name"),
        ("adb", "did you mean 'adb:'?"),
        ("adb://HT7A1B200123", "write 'adb:HT7A1B200123'"),
        ("exec", "did you mean 'exec:'?"),
        ("exec://box", "write 'exec:box'"),
        ("exec:docker exec -i box", "the option `command`"),
        ("exec:-i", "no name for exec:"),
        ("exec:a\n", "no name for exec:"),
        ("adb:-P1", "no serial number"),
        ("adb:a b", "no serial number"),
        ("adb:$(x)\n", "no serial number"),
    ],
)
def test_a_bad_url_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_url(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("lab:pi5", DeviceUrl("lab", key="pi5")),
        ("lab:board=pi5-07", DeviceUrl("lab", board="pi5-07")),
        ("lab:board=pi5@10.0.0.7:9090#2", DeviceUrl("lab", board="pi5@10.0.0.7:9090#2")),
        ("lab://host/pi5", DeviceUrl("lab", "host", key="pi5")),
        ("lab://farm@host:2222/pi5", DeviceUrl("lab", "host", 2222, "farm", "pi5")),
        ("lab://[::1]:22/pi5/tag=quiet", DeviceUrl("lab", "::1", 22, key="pi5", tags=("quiet",))),
        ("lab://host/tag=a/tag=b", DeviceUrl("lab", "host", tags=("a", "b"))),
    ],
)
def test_a_url_of_a_lab_is_taken_apart(text: str, url: DeviceUrl) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lab:", "it names no boards; for example"),
        ("lab://farm@host", "it names no boards"),
        ("lab://host/a/b", "'b' has no place there: a kind first, then board=, tag="),
        ("lab://host/kind=a", "'kind=a' has no place there"),
        ("lab://host/board=", "'board=' is no kind, board=NAME or tag=WORD"),
        ("lab:a b", "'a b' is no kind"),
        ("lab://host/board=a/board=b", "'board=b' has no place there"),
        ("lab://:22/pi5", "has no host"),
        ("lab://farm:secret@host/pi5", "a password has no place"),
    ],
)
def test_a_wrong_url_of_a_lab_is_explained(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_url(text)
