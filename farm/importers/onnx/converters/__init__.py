"""Convert ONNX operators by TVM's converters, replaced by farm's where TVM's are missing or wrong.

    missing      operators that TVM has no converter for
    corrected    operators that TVM converts incorrectly
    activations  activations of types other than float32
    pools        pools
    reductions   reductions of integers and of float16
    sequences    operators of sequences
    resize       operators that sample images
    recurrent    LSTM, GRU and RNN
    einsum       sums of products by labels
    block_quantized  products with weights of few bits, and rows of such weights
    attention    attentions with caches of keys and values
    rotary_embedding  positions as angles
    layer_norms  normalizations of layers
    integer_products  products and convolutions of bytes
    bounded      operators that bounded_shapes writes

Inside `with installed():` TVM's importer uses all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from farm.importers.onnx.converters import (
    activations,
    attention,
    block_quantized,
    bounded,
    corrected,
    einsum,
    integer_products,
    layer_norms,
    missing,
    pools,
    recurrent,
    reductions,
    resize,
    rotary_embedding,
    sequences,
)

_OURS: dict[str, Any] = {
    **recurrent.CONVERTERS,
    **corrected.CONVERTERS,
    **missing.CONVERTERS,
    **resize.CONVERTERS,
    **bounded.CONVERTERS,
    **einsum.CONVERTERS,
    **block_quantized.CONVERTERS,
    **integer_products.CONVERTERS,
    **activations.CONVERTERS,
    **pools.CONVERTERS,
    **reductions.CONVERTERS,
    **sequences.CONVERTERS,
    **attention.CONVERTERS,
    **layer_norms.CONVERTERS,
    **rotary_embedding.CONVERTERS,
}


def converter_table() -> dict[str, Any]:
    """Return the converters by operator name, in the form of TVM's importer's table."""
    from tvm.relax.frontend.onnx import onnx_frontend

    return {**onnx_frontend._get_convert_map(), **_OURS}


@contextmanager
def install_converters() -> Iterator[None]:
    """Make TVM's importer use these converters inside the context.

    TVM has no parameter for converters, only a function that returns its table.
    """
    from tvm.relax.frontend.onnx import onnx_frontend

    original, table = onnx_frontend._get_convert_map, converter_table()
    onnx_frontend._get_convert_map = lambda: table
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = original
