"""Kernels for the tests of the crew."""

from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.crew import share
from nvdla.kernels.jit.crew_places_code import current_core, met


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


@njit(nogil=True)
def meets_itself(bed, meetings):
    """As a helper that finds its caller on the core where it is itself: the core, and how many meetings there are."""
    core = current_core()
    return core, met(bed, core, meetings)
