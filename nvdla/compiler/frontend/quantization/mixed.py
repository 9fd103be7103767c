"""Mixed precision: which layers of an int8 network need int16, by what they do to the results on calibration data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from nvdla.compiler.builder.accuracy import LayerAccuracy
from nvdla.errors import BuildError

Outputs = Mapping[str, np.ndarray]
# Samples on which a choice is judged, and layers that are tried in int8 again one by one.
JUDGED_SAMPLES = 32
TRIED_BACK = 16


def drop(exact: Sequence[Outputs], results: Sequence[Outputs]) -> float:
    """Loss by quantization, 0 (none) to 1, the worst over the outputs.

    A vector of scores loses the share of samples whose best score is another one's; any other output its noise, as a
    share of the signal's energy.
    """
    worst = 0.0
    for name in exact[0]:
        reals, others = (
            np.stack([np.asarray(outputs[name], np.float64) for outputs in all_]) for all_ in (exact, results)
        )
        sizes = [size for size in reals.shape[1:] if size > 1]
        if len(sizes) == 1:
            flat, other = (array.reshape(len(exact), -1) for array in (reals, others))
            lost = float(np.mean(flat.argmax(axis=1) != other.argmax(axis=1)))
        else:
            signal = float(np.sum(reals**2))
            lost = min(float(np.sum((reals - others) ** 2)) / signal, 1.0) if signal else 0.0
        worst = max(worst, lost)
    return worst


def choose(rows: Iterable[LayerAccuracy], loss: Callable[[frozenset[str]], float], most: float) -> frozenset[str]:
    """The tensors to compute in int16 so that ``loss`` of them is at most ``most``.

    ``loss(tensors)`` builds the network with these in int16 and measures it. Layers are ranked by the noise that each
    makes alone; the shortest sufficient head of that ranking is found by bisection, and then each of its layers, the
    least noisy first, goes back to int8 where that does no harm. Raises BuildError where int16 throughout is not
    enough.
    """
    if loss(frozenset()) <= most:
        return frozenset()
    ranked = [row.tensor for row in sorted(rows, key=lambda row: row.alone) if np.isfinite(row.alone)]
    least = loss(frozenset(ranked))
    if least > most:
        raise BuildError(
            f"with every layer in int16 the results still lose {100 * least:.3g} %, more than {100 * most:.3g} %; "
            "allow more (--max-drop), or build in fp16"
        )
    low, high = 0, len(ranked)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if loss(frozenset(ranked[:middle])) <= most else (middle, high)
    chosen = ranked[:high]
    for name in list(reversed(chosen))[:TRIED_BACK]:
        without = [tensor for tensor in chosen if tensor != name]
        if loss(frozenset(without)) <= most:
            chosen = without
    return frozenset(chosen)
