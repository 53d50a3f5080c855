"""Fourier transforms as products with matrices, beside numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from host_profile import HOST
from tvm import relax

from farm.compiler import host_run
from farm.compiler.ir.constants import constant_value
from farm.importers.fourier import fourier_transform, inverse_transform_to_reals

numbers = np.random.default_rng(28)


def computed(arrays, emit):
    """The outputs of `emit(builder, inputs)` on this machine."""
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"x{number}", relax.TensorType(array.shape, "float32"))
        for number, array in enumerate(arrays)
    ]
    with builder.function("main", inputs, attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            out = builder.emit_output(relax.Tuple(emit(builder, inputs)))
        builder.emit_func_output(out)
    return host_run.compile_host_runner(builder.get(), [], HOST)([*arrays])


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 67, 96, 400, 2048])
def test_a_transform_is_as_numpys(count, parts, inverse):
    arrays = numbers.standard_normal((parts, 2, 3, count)).astype("float32")
    bins = count // 2 + 1 if parts == 1 else count
    signal = arrays[0] + 1j * arrays[1] if parts == 2 else arrays[0]
    expected = np.fft.ifft(signal) * count if inverse else np.fft.fft(signal)
    real, imaginary = computed(
        arrays, lambda builder, x: fourier_transform(builder, x, bins, inverse=inverse)
    )
    error = np.abs(real + 1j * imaginary - expected[..., :bins]).max()
    assert error < 1e-6 * count**0.5 * np.abs(expected).max()


@pytest.mark.parametrize("count", [6, 400])
def test_a_signal_is_multiplied_by_its_window(count):
    x, window = numbers.standard_normal((2, 2, count)).astype("float32")
    real, imaginary = computed(
        [x], lambda builder, given: fourier_transform(builder, given, count, window=window[0])
    )
    np.testing.assert_allclose(real + 1j * imaginary, np.fft.fft(x * window[0]), atol=1e-3)


@pytest.mark.parametrize("count", [1, 7, 8, 256, 401, 405, 2048])
@pytest.mark.parametrize("left_out", [0, 1])
def test_an_inverse_transform_to_reals_is_as_numpys(count, left_out):
    bins = max(1, count // 2 + 1 - left_out)
    arrays = numbers.standard_normal((2, 3, bins)).astype("float32")
    [made] = computed(
        arrays, lambda builder, parts: [inverse_transform_to_reals(builder, parts, count)]
    )
    sums = np.pad(arrays[0] + 1j * arrays[1], [(0, 0), (0, count // 2 + 1 - bins)])
    np.testing.assert_allclose(made / count, np.fft.irfft(sums, count), atol=1e-5)


@pytest.mark.parametrize("count", [405, 2048])
def test_real_sums_alone_are_transformed_to_reals(count):
    x = numbers.standard_normal((3, count // 2 + 1)).astype("float32")
    [made] = computed(
        [x], lambda builder, parts: [inverse_transform_to_reals(builder, parts, count)]
    )
    np.testing.assert_allclose(made / count, np.fft.irfft(x, count), atol=1e-5)


@pytest.mark.parametrize("to_reals", [False, True])
@pytest.mark.parametrize(("count", "size"), [(2048, 2), (5000, 2)])
def test_the_matrices_of_a_long_transform_are_small(count, size, to_reals):
    """In MB; of 2,048 points one matrix would take 17."""
    found = []
    shape = (3, count // 2 + 1 if to_reals else count)
    x, y = (relax.Var(name, relax.TensorType(shape, "float32")) for name in "xy")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        if to_reals:
            made = [inverse_transform_to_reals(builder, [x, y], count)]
        else:
            made = fourier_transform(builder, [x], count // 2 + 1)
        builder.emit_func_output(relax.Tuple(made))

    def collect(node):
        if (value := constant_value(node)) is not None:
            found.append(value.nbytes)

    relax.analysis.post_order_visit(builder.get()["main"], collect)
    assert 0 < sum(found) < size * 1e6


def test_a_transform_of_a_large_prime_number_of_points_is_refused():
    x = relax.Var("x", relax.TensorType((3, 5003), "float32"))
    builder = relax.BlockBuilder()
    with pytest.raises(NotImplementedError, match="of 5003 points"), builder.function("main", [x]):
        fourier_transform(builder, [x], 10)
