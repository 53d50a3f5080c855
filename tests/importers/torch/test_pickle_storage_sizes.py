"""Records that a pickle of tensors claims, against those that its archive has. No torch."""

from __future__ import annotations

import pytest

from farm.errors import ModelError
from farm.importers.torch.pickle_check import names_in_pickle

RECORDS = {"0": 1000}


def claim(count: str, key: str = "0", kind: str = "FloatStorage") -> set[str]:
    """Read a pickle that refers to a record as torch does, with this opcode for the number of
    elements.
    """
    content = f"(S'storage'\nctorch\n{kind}\nS'{key}'\nS'cpu'\n{count}\ntQ."
    return names_in_pickle(content.encode(), RECORDS.get, "net.pt")


def test_a_record_as_large_as_claimed_is_read() -> None:
    assert claim("I250") == {"torch.FloatStorage"}
    assert claim("I1000", kind="ByteStorage") == {"torch.ByteStorage"}
    assert claim("I0", key="absent") == {"torch.FloatStorage"}


@pytest.mark.parametrize(
    ("count", "key", "kind"),
    [
        ("I251", "0", "FloatStorage"),
        ("I1000", "0", "FloatStorage"),  # enough bytes, if elements had one each
        ("I501", "0", "HalfStorage"),
        ("I1", "absent", "FloatStorage"),
    ],
)
def test_a_record_smaller_than_claimed_is_refused(count: str, key: str, kind: str) -> None:
    with pytest.raises(ModelError, match="is not read") as error:
        claim(count, key, kind)
    assert "is said to be in the record" in error.value.why


@pytest.mark.parametrize("count", ["F250.0", "I01", "S'250'", "I-1"])
def test_a_number_of_elements_that_is_none_is_refused(count: str) -> None:
    with pytest.raises(ModelError, match="is not read") as error:
        claim(count)
    assert "in a way that torch does not write" in error.value.why
