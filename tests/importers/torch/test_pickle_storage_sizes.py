"""Records that a pickle of tensors claims, against those that its archive has. No torch."""

from __future__ import annotations

import pytest

from farm.errors import ModelError
from farm.importers.torch.checks.pickle_check import names_in_pickle

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


TENSOR = "({storage}I0\n(I{extent}\nt(I1\ntI00\nccollections\nOrderedDict\n(tRt"
STORAGE = "(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI250\ntQ"


def rebuilt(call: str, extent: int = 250) -> set[str]:
    """Read a pickle with a tensor that `call` rebuilds from its arguments."""
    arguments = TENSOR.format(storage=STORAGE, extent=extent)
    return names_in_pickle(
        call.format(arguments=arguments).encode("latin-1"), RECORDS.get, "net.pt"
    )


CALLS = ("{{name}}{arguments}R.", "{{name}}{arguments}b.", "{{name}}(t\x81{arguments}b.")
CALLS = tuple(call.replace("{{name}}", "ctorch._utils\n_rebuild_tensor_v2\n") for call in CALLS)


@pytest.mark.parametrize("call", CALLS, ids=["reduce", "build", "new object"])
def test_a_tensor_is_checked_however_it_is_rebuilt(call: str) -> None:
    """In torch's reader of scripts BUILD calls, as REDUCE does."""
    assert "torch._utils._rebuild_tensor_v2" in rebuilt(call)
    with pytest.raises(ModelError, match="is not read") as error:
        rebuilt(call, 4096)
    assert "does not fit into its record" in error.value.why


@pytest.mark.parametrize(
    "function",
    [
        "I0\n",
        "ctorch\nper_tensor_affine\n",
        "ctorch\nFloatStorage\n",
        "ctorch.jit._pickle\nrestore_type_tag\n(I0\nS'int'\ntR",
    ],
)
@pytest.mark.parametrize("opcode", ["R", "b"])
def test_a_function_is_not_called_by_its_number(function: str, opcode: str) -> None:
    named = "ctorch._utils\n_rebuild_tensor_v2\n0"  # the first that torch numbers
    with pytest.raises(ModelError, match="is not read") as error:
        rebuilt(named + function + "{arguments}" + opcode + ".", 4096)
    assert "what is no function" in error.value.why
