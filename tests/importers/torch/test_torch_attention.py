"""Attention and transformer layers of torch, traced with and without gradients, and exported."""

from __future__ import annotations

import pytest
import torch
from host_build import assert_agrees

from farm import importers
from farm.errors import ModelError
from farm.importers.torch import torchscript
from farm.types import Model

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)
TOKENS, WIDTH, HEADS = 5, 16, 4
attention = torch.nn.functional.scaled_dot_product_attention


class Attending(torch.nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.how = how

    def forward(self, x):
        return tuple(one for one in self.attention(x, x, x, **self.how) if one is not None)


class Encoding(torch.nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
        self.how = how

    def forward(self, x):
        return self.layer(x, **self.how)


class Translating(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Transformer(WIDTH, HEADS, 1, 1, 32, batch_first=True)

    def forward(self, x):
        return self.network(x, x[:, :3])


LOWER = torch.ones(TOKENS, TOKENS).tril() == 0
LAST = torch.tensor([[False] * 4 + [True], [False] * 5])
NETWORKS = {
    "attention": lambda: Attending(need_weights=False),
    "attention and its weights": lambda: Attending(),
    "weights of each head": lambda: Attending(average_attn_weights=False),
    "a mask of tokens": lambda: Attending(attn_mask=LOWER),
    "a mask of padding": lambda: Attending(key_padding_mask=LAST),
    "an encoder layer": lambda: Encoding(),
    "an encoder layer with a mask": lambda: Encoding(src_mask=LOWER),
    "an encoder layer with padding": lambda: Encoding(src_key_padding_mask=LAST),
    "a transformer": Translating,
}


@pytest.mark.parametrize(
    ("name", "gradients"),
    [
        *((name, False) for name in NETWORKS),
        *((name, True) for name in ("attention", "weights of each head", "a mask of padding")),
        *((name, True) for name in ("an encoder layer with a mask",)),
    ],
)
def test_a_traced_layer_is_torch_s(name, gradients, tmp_path):
    torch.manual_seed(3)
    network, x = NETWORKS[name]().eval(), torch.randn(2, TOKENS, WIDTH)
    with torch.set_grad_enabled(gradients):
        torch.jit.trace(network, x, check_trace=False).save(tmp_path / "m.pt")
    assert_agrees(importers.import_model(Model("m", str(tmp_path / "m.pt")), tmp_path), atol=1e-5)


class Counting(torch.nn.Module):
    """Extents that are divided, and what is made of them: a trace computes them with tensors."""

    def forward(self, x):
        half = x.shape[2] // 2
        places = torch.arange(half * 2) - torch.full((half,), 0.5).sum()
        return (x + places).reshape(2, -1, half) @ torch.eye(half, half)


def test_what_a_trace_makes_of_extents_is_known(tmp_path, monkeypatch):
    def refused(*_):
        raise ModelError("", "", "")

    for other in ("_by_frozen_program", "_by_onnx"):
        monkeypatch.setattr(torchscript, other, refused)
    script = torch.jit.trace(Counting(), torch.randn(2, TOKENS, WIDTH), check_trace=False)
    assert "aten::Int" in str(script.graph)
    script.save(tmp_path / "m.pt")
    assert_agrees(importers.import_model(Model("m", str(tmp_path / "m.pt")), tmp_path))


class Sharing(torch.nn.Module):
    """Two heads of queries share a head of keys."""

    def forward(self, q, k):
        mask = torch.ones(TOKENS, TOKENS).tril() > 0
        return (
            attention(q, k, k, enable_gqa=True),
            attention(q, k, k, is_causal=True, enable_gqa=True),
            attention(q, k, k, attn_mask=mask, scale=0.3, enable_gqa=True),
        )


def test_heads_of_queries_share_heads_of_keys(tmp_path):
    arguments = torch.randn(1, HEADS, TOKENS, 8), torch.randn(1, HEADS // 2, TOKENS, 8)
    torch.export.save(torch.export.export(Sharing(), arguments), tmp_path / "m.pt2")
    assert_agrees(importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path))


class Padded(torch.nn.Module):
    """A stack of layers, which torch runs with nested tensors in the place of a mask."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
        self.network = torch.nn.TransformerEncoder(layer, 1)

    def forward(self, x):
        return self.network(x, src_key_padding_mask=LAST)


def test_nested_tensors_are_refused_with_what_to_do(tmp_path):
    network, x = Padded().eval(), torch.randn(2, TOKENS, WIDTH)
    with torch.no_grad():
        script = torch.jit.trace(network, x, check_trace=False)
    script.save(tmp_path / "m.pt")
    with pytest.raises(ModelError) as error:
        importers.import_model(Model("m", str(tmp_path / "m.pt")), tmp_path)
    assert "set_fastpath_enabled(False)" in error.value.fix
