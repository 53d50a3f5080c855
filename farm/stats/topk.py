"""The best classes of a vector of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def top_indices(scores: NDArray[Any], count: int) -> list[int]:
    """Return the indices of the `count` largest scores, the largest first.

    Among equal scores the lower index comes first; NaN comes last.
    """
    import numpy as np

    return [
        int(index)
        for index in np.argsort(-scores.reshape(-1).astype(np.float64), kind="stable")[:count]
    ]
