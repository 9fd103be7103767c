"""Kernels for the tests of the thread pool."""

from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.thread_pool import share
from nvdla.kernels.jit.thread_pool_code import current_core, met


@njit(nogil=True)
def _count(number, counts, rounds):
    for _ in range(rounds):
        counts[number] += 1


@njit(nogil=True, shared=True)
def count_pieces(pool, counts, rounds):
    """Add ``rounds`` to every element, one piece per element."""
    share(pool, counts.size, _count, (counts, rounds))


@njit(nogil=True, shared=True)
def beyond_the_end(pool, counts):
    """Share one piece more than there are elements."""
    share(pool, counts.size + 1, _count, (counts, 1))


@njit(nogil=True)
def meets_itself(slot, meetings):
    """Act as a worker on its caller's core; return the core and the number of meetings."""
    core = current_core()
    return core, met(slot, core, meetings)
