"""The memory port: what everybody gets of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdla.analysis.cycles.simulation import Activity, Port, SimulatedEvent, Simulation


def finish(port, *activities):
    """The cycle at which each activity ends, all begun together."""
    simulation, ends = Simulation(port), {}

    def run(place, activity):
        yield activity
        ends[place] = simulation.now

    for place, activity in enumerate(activities):
        simulation.start(run(place, activity))
    simulation.run()
    return [ends[place] for place in range(len(activities))]


def test_alone_an_activity_takes_its_duration():
    assert finish(Port(8, False), Activity(100, 8)) == [100]
    assert finish(Port(4, False), Activity(100, 8)) == [200]


def test_two_that_want_all_get_half_and_then_all():
    assert finish(Port(8, False), Activity(100, 8), Activity(50, 8)) == [pytest.approx(150), pytest.approx(100)]


def test_who_wants_little_gets_it():
    assert finish(Port(8, False), Activity(100, 8), Activity(100, 2)) == [pytest.approx(125), pytest.approx(100)]


def test_weights_decide_who_gets_more():
    first, second = finish(Port(8, False), Activity(300, 8, weight=3.0), Activity(100, 8))
    assert (first, second) == (pytest.approx(400), pytest.approx(400))


def test_reads_and_writes_meet_only_where_they_share():
    reading, writing = Activity(100, 8), Activity(100, 0, 8)
    assert finish(Port(8, False), reading, writing) == [100, 100]
    reading, writing = Activity(100, 8), Activity(100, 0, 8)
    assert finish(Port(8, True), reading, writing) == [pytest.approx(200), pytest.approx(200)]


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=5),
    st.integers(1, 40),
    st.booleans(),
)
def test_the_port_never_moves_more_than_it_can_and_everything_ends(wanted, rate, shared):
    activities = [Activity(duration, read, write) for duration, read, write in wanted]
    end = max(finish(Port(rate, shared), *activities))
    reads = sum(duration * read for duration, read, _ in wanted)
    writes = sum(duration * write for duration, _, write in wanted)
    least = (reads + writes if shared else max(reads, writes)) / rate
    assert end >= least * 0.99 - 1
    assert end >= max(duration for duration, _, _ in wanted) - 1
    assert end <= sum(duration for duration, _, _ in wanted) + 2.1 * (reads + writes) / rate + 1


def test_an_event_that_has_happened_holds_nobody_up():
    simulation, seen = Simulation(Port(8, False)), []
    event = SimulatedEvent()

    def waits():
        yield event
        seen.append(simulation.now)
        yield event
        seen.append(simulation.now)

    simulation.start(waits())
    simulation.happen(event, 30.0)
    simulation.run()
    assert seen == [30, 30]
