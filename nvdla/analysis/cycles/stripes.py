"""The time of a group of kernels: stripes of output positions, as CSC sends them and CACC delivers them.

Each stripe goes over the taps; a tap takes as long as the loading of the next weights at least. CSC may send the last
tap of a stripe only when CACC's buffer (two kernels' worth of the array: a full stripe) has room for its results, and
CACC delivers them one by one as fast as the units behind take them.
"""

from __future__ import annotations

from collections import deque

DELIVERY = 38  # cycles from the first data of a stripe's last tap to its first result delivered


class Delivery:
    """CACC's buffer. ``pace``: cycles for an atom of results; times count from the beginning of the group."""

    def __init__(self, room: int, pace: float, earliest: float = 0.0) -> None:
        self.room, self.pace = room, pace
        self.end = earliest  # of what is delivered so far
        self._credits = room
        self._segments: deque[tuple[float, int]] = deque()

    def send(self, moment: float, length: int) -> float:
        """Send a stripe's last tap, at ``moment`` or when there is room: the cycle at which it goes."""
        missing = length - self._credits
        while missing > 0 and self._segments:
            begin, count = self._segments.popleft()
            taken = min(count, missing)
            moment = max(moment, begin + self.pace * taken)
            if taken < count:
                self._segments.appendleft((begin + self.pace * taken, count - taken))
            missing -= taken
            self._credits += taken
        self._credits -= length
        begin = max(moment + DELIVERY, self.end)
        self._segments.append((begin, length))
        self.end = begin + self.pace * length
        return moment

    def shift(self, cycles: float) -> None:
        """Count from another beginning, so many cycles later."""
        self.end -= cycles
        self._segments = deque((begin - cycles, count) for begin, count in self._segments)

    @property
    def state(self) -> tuple[float, ...]:
        """What decides of the time of the stripes to come."""
        return (round(self.end, 6), self._credits, *(round(part, 6) for each in self._segments for part in each))


def group_time(pieces: list[tuple[int, int]], lines: int, taps: int, loading: int, delivery: Delivery) -> float:
    """Cycles from the first data of a group to the first of the next one. ``pieces``: (length, how many) of the stripes
    of a line, ``lines`` of them; ``loading``: cycles in which weights are loaded. ``delivery`` counts from the end of
    the group afterwards."""
    total, line = 0.0, 0
    while line < lines:
        before, clock = delivery.state, 0.0
        for length, count in pieces:
            clock = _equal_stripes(clock, length, count, taps, loading, delivery)
        delivery.shift(clock)
        line += 1
        total += clock
        if delivery.state == before:  # the lines to come are like this one
            return total + clock * (lines - line)
    return total


def _equal_stripes(clock: float, length: int, count: int, taps: int, loading: int, delivery: Delivery) -> float:
    """The clock after ``count`` stripes of one length. ``delivery`` counts from the line's beginning."""
    each = max(length, loading)
    number, last = 0, -1.0
    while number < count:
        sent = delivery.send(clock + (taps - 1) * each, length)
        gone = sent + each - clock
        clock += gone
        number += 1
        if gone == last and number < count:  # steady
            rest = (count - number) * gone
            clock += rest
            delivery.shift(-rest)
            number = count
        last = gone
    return clock
