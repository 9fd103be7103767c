"""The memory port: what everybody gets of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.cycles.estimate import convolution, operation_cycles, queue_cycles
from nvdla.analysis.cycles.simulation import Activity, Flight, Port, SimulatedEvent, Simulation
from nvdla.emulator.hardware.configuration import configuration


def finish(port, *activities):
    """The cycle at which each activity ends, all begun together."""
    return finish_from(port, *((0, activity) for activity in activities))


def finish_from(port, *activities):
    """Cycle at which each activity, (cycle of its start, activity), ends."""
    simulation, ends = Simulation(port), [0.0] * len(activities)

    def unit(number, start, activity):
        yield float(start)
        yield activity
        ends[number] = simulation.now

    for number, (start, activity) in enumerate(activities):
        simulation.start(unit(number, start, activity))
    simulation.run()
    return ends


def test_alone_an_activity_takes_its_duration():
    assert finish(Port(8, False), Activity(100, 8)) == [100]
    assert finish(Port(4, False), Activity(100, 8)) == [200]


def test_two_that_want_all_get_half_and_then_all():
    assert finish(Port(8, False), Activity(100, 8), Activity(50, 8)) == [pytest.approx(150), pytest.approx(100)]


def test_a_small_request_gets_its_bandwidth():
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


def test_a_past_event_delays_no_operation():
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


@pytest.mark.parametrize(
    ("bus", "wanted", "rate"),
    [
        (32, None, 32),
        (32, 64, 32),
        (32, 32, 32),
        (32, 31, 16),
        (32, 20, 16),
        (32, 16, 16),
        (32, 15, 32 / 3),
        (8, 3, 8 / 3),
    ],
)
def test_a_beat_takes_whole_cycles(bus, wanted, rate):
    assert Memory(100, wanted).rate(bus) == pytest.approx(rate)


@given(st.floats(1e-3, 1e6), st.sampled_from([8, 32, 64]))
def test_the_port_is_never_faster_than_the_memory_and_at_most_a_beat_slower(wanted, bus):
    rate = Memory(100, wanted).rate(bus)
    assert rate <= min(wanted, bus) * (1 + 1e-6)
    assert bus / rate <= math.ceil(bus / wanted)


def test_twenty_bytes_a_cycle_on_a_bus_of_32_are_sixteen():
    """The fully connected layer of ResNet-50 on the RTL, reads and writes sharing 20 bytes: 128,328 cycles from its
    enabling to its last weights, where 20 bytes every cycle would take 102,700."""
    layer = convolution(configuration("nv_large"), (2048, 1, 1), (1000, 1, 1), (1, 1), data_banks=1, weight_banks=15)
    time = operation_cycles(layer, configuration("nv_large"), Memory(100, 20.0, True))
    assert time.weights_done == pytest.approx(128328, rel=0.002)


def test_reads_wait_for_others_to_return():
    """100 beats of 8 bytes are outstanding at most, each for 400 cycles: they go in bursts of 100."""

    def port():
        return Port(8, False, Flight(800, 400))

    assert finish(port(), Activity(100, 8)) == [pytest.approx(100)]
    assert finish(port(), Activity(101, 8)) == [pytest.approx(401)]
    assert finish(port(), Activity(300, 8)) == [pytest.approx(900)]
    assert finish(port(), Activity(300, 0, 8)) == [pytest.approx(300)]
    assert finish(port(), Activity(800, 2)) == [pytest.approx(800)]  # as many return as are requested


def test_reading_ahead_takes_the_port_before_the_data_are_needed():
    """A unit that needs 2 bytes per cycle and has a queue of 300 takes half of the port until its queue is full."""

    def reading():
        return Activity(400, 8), Activity(600, 2, queue=300)

    assert finish(Port(8, False), Activity(400, 8), Activity(600, 2)) == [pytest.approx(1600 / 3), pytest.approx(600)]
    # Full at 150 with 600 of 1,200 bytes, all read at 450; the other has 600 bytes at 150, and 2,400 at 450.
    assert finish(Port(8, False), *reading()) == [pytest.approx(450 + 800 / 8), pytest.approx(600)]
    assert finish(Port(16, False), *reading()) == [pytest.approx(400), pytest.approx(600)]


def test_a_full_queue_bridges_a_time_without_data():
    ends = finish_from(Port(8, False), (0, Activity(300, 4, queue=400)), (100, Activity(100, 8, weight=1e6)))
    assert ends == [pytest.approx(300), pytest.approx(200, abs=0.1)]


def test_a_unit_that_begins_waits_for_what_the_memory_has_accepted():
    """A bus of 8 bytes before a memory of 4: 100 cycles of reading leave 400 bytes unanswered, 100 cycles' worth."""
    port = Port(4, False, bus=8, most=1000)
    ends = finish_from(port, (0, Activity(200, 8)), (100, Activity(100, 1, queue=10)))
    assert ends[1] == pytest.approx(300)
    assert finish(Port(8, False, bus=8, most=1000), Activity(100, 1, queue=10)) == [pytest.approx(100)]


def test_what_returns_while_nothing_is_requested_makes_room():
    simulation, ends = Simulation(Port(8, False, Flight(800, 400))), []

    def reading():
        for idle in (0, 350, 1000):
            yield simulation.now + idle
            yield Activity(100, 8)
            ends.append(simulation.now)

    simulation.start(reading())
    simulation.run()
    assert ends == [pytest.approx(100), pytest.approx(550), pytest.approx(1650)]


@pytest.mark.parametrize(("latency", "cycles"), [(100, 484), (400, 919)])
def test_256_beats_are_outstanding_at_most(latency, cycles):
    """A 3x3 convolution of 16x16x16 on the RTL of nv_large, from its enabling to its last data: 328 beats of data and
    weights, of which 72 are requested when the first ones have come."""
    config = configuration("nv_large")
    layer = convolution(config, (16, 16, 16), (16, 16, 16), (3, 3), data_banks=1, weight_banks=1)
    assert operation_cycles(layer, config, Memory(latency)).data_done == pytest.approx(cycles, abs=4)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(40, 4000),
    st.integers(1, 900),
)
def test_a_limit_of_outstanding_reads_only_delays_and_everything_ends(wanted, rate, limit, trip):
    def end(flight):
        return max(finish(Port(rate, False, flight), *(Activity(*each) for each in wanted)))

    free, limited = end(None), end(Flight(limit, trip))
    reads = sum(duration * read for duration, read, _ in wanted)
    assert limited >= free * 0.99 - 1
    assert limited >= (reads / limit - 1) * min(trip, limit / rate) * 0.99 - 1
    assert limited <= free + (reads / limit + 1) * (trip + 1) + 1


def test_a_queue_at_twenty_bytes_takes_as_long_as_at_sixteen():
    config = configuration("nv_large")
    chains = [
        convolution(config, (64, 28, 28), (256, 28, 28), (1, 1), data_banks=2, weight_banks=1, sums=place > 0)
        for place in range(3)
    ]
    cycles = [queue_cycles(chains, config, Memory(100, rate, True)) for rate in (20, 16, 32)]
    assert cycles[0] == cycles[1] > cycles[2]
