"""Write and read parameters as the files that `vm.builtin.tensor_cache.load` loads.

tensor-cache.json names the tensors `parameter_0`, `parameter_1`, ... and gives the offset of each
in params_shard_0.bin, which holds raw little-endian bytes (TVM,
src/runtime/vm/tensor_cache_support.cc). Its metadata, which TVM ignores, name the tensors that the
function `ON_LOAD` of the library replaces, and by which transform, see
farm.compiler.load_time_transforms.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from farm.compiler.equal_arrays import first_equal_arrays
from farm.compiler.weight_transforms import WeightTransform, transform_from_json
from farm.errors import BuildError

if TYPE_CHECKING:  # functions import it at run time: users of the names need not wait for it
    import numpy as np

# A library may have this function; it is called once after the parameters are loaded. The name is
# from when it could only widen float16: agents of that version call it.
ON_LOAD = "widen_parameters"
_TRANSFORMS = "transforms"  # in the metadata, by the name of the tensor
_NUMBERS, _EXTENDED = "biufc", ("bfloat16",)  # numpy's kinds of types, and names of others
INDEX, SHARD, PREFIX = "tensor-cache.json", "params_shard_0.bin", "parameter"


def array_bytes(value: np.ndarray[Any, Any]) -> memoryview:
    """Return the bytes of an array in C order, without a copy if it is contiguous.

    The array may be of any type, bfloat16 too.
    """
    import numpy as np

    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def write_parameters(
    folder: Path,
    parameters: Sequence[np.ndarray[Any, Any]],
    transforms: Mapping[int, WeightTransform] = MappingProxyType({}),
) -> None:
    """Write both files into a new folder. Without parameters the index is empty.

    Parameters with the same bytes are written once.
    `transforms` are those that the library applies when it is loaded, by the parameter's index.
    """
    folder.mkdir()
    records, size = [], 0
    offsets: dict[int, int] = {}  # by the id of the first array with these bytes
    with (folder / SHARD).open("wb") as shard:
        pairs = zip(parameters, first_equal_arrays(parameters), strict=True)
        for index, (parameter, first) in enumerate(pairs):
            if id(first) not in offsets:
                offsets[id(first)] = size
                size += shard.write(array_bytes(parameter))
            records.append(
                {
                    "name": f"{PREFIX}_{index}",
                    "shape": list(parameter.shape),
                    "dtype": str(parameter.dtype),
                    "format": "raw",
                    "nbytes": parameter.nbytes,
                    "byteOffset": offsets[id(first)],
                }
            )
    shards = (
        [{"dataPath": SHARD, "format": "raw-shard", "nbytes": size, "records": records}]
        if records
        else []
    )
    said = {f"{PREFIX}_{index}": one.to_json() for index, one in transforms.items()}
    metadata = {_TRANSFORMS: said} if said else {}
    (folder / INDEX).write_text(json.dumps({"metadata": metadata, "records": shards}))


def dtype_by_name(name: str) -> np.dtype[Any]:
    """Return the type of numbers with this name.

    Raises BuildError for others: numpy takes the bytes of an array of objects as addresses, and a
    process that was taken over may have written them.
    """
    import numpy as np

    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype("O")
    if dtype.kind not in _NUMBERS and dtype.name not in _EXTENDED:
        raise BuildError(
            "the tensors of a model are damaged",
            f"one has the type {name}"[:600],
            "run the command again",
        )
    return dtype


def read_stored_parameters(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the parameters as they are stored, by name, in order.

    Raises BuildError for a type that is not one of numbers: numpy takes the bytes of an array of
    objects as addresses, and a process that was taken over may have written them.
    """
    import numpy as np

    shards = json.loads((folder / INDEX).read_text())["records"]
    content = (folder / SHARD).read_bytes()

    def tensor(record: dict[str, Any]) -> np.ndarray[Any, Any]:
        dtype = np.dtype(record["dtype"])
        if dtype.kind not in _NUMBERS and dtype.name not in _EXTENDED:
            raise BuildError(
                "the parameters of a build are damaged",
                f"one has the type {dtype}",
                f"rm -r {shlex.quote(str(folder.parent))}",
            )
        values: np.ndarray[Any, Any] = np.ndarray(
            record["shape"], dtype, content, record["byteOffset"]
        )
        return values

    return {record["name"]: tensor(record) for shard in shards for record in shard["records"]}


def read_transformed_parameters(
    folder: Path, dtypes: Mapping[str, str]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the parameters as the code takes them, by name, in order.

    `dtypes` are the types that the code takes, by name. Raises BuildError as
    `read_stored_parameters` does, and for a transform that does not fit its tensor.
    """
    kept = read_stored_parameters(folder)
    said = json.loads((folder / INDEX).read_text())["metadata"].get(_TRANSFORMS, {})
    found = {}
    for name, value in kept.items():
        loaded = value.astype(dtypes.get(name, value.dtype), copy=False)
        if name in said:
            try:
                loaded = transform_from_json(said[name], loaded.shape).apply(loaded)
            except (KeyError, TypeError, ValueError) as exc:
                raise BuildError(
                    "the parameters of a build are damaged",
                    f"the transform of {name} does not fit it: {exc}"[:600],
                    f"rm -r {shlex.quote(str(folder.parent))}",
                ) from exc
        found[name] = loaded
    return found
