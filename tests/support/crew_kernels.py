"""Kernels for the tests of the crew."""

from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.crew import share


@njit(nogil=True)
def _count(number, counts, rounds):
    for _ in range(rounds):
        counts[number] += 1


@njit(nogil=True, shared=True)
def count_pieces(crew, counts, rounds):
    """Add ``rounds`` to every element, each by a piece of its own."""
    share(crew, counts.size, _count, (counts, rounds))


@njit(nogil=True, shared=True)
def beyond_the_end(crew, counts):
    """One piece too many."""
    share(crew, counts.size + 1, _count, (counts, 1))
