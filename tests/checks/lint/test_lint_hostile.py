"""Whatever bytes the descriptors hold, the tools say what is wrong, in time, and never stumble."""

import contextlib
import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvdla import NvdlaError
from nvdla.checks.diff import diff
from nvdla.checks.doctor.doctor import examine
from nvdla.checks.lint import lint

DESCRIPTORS = ("op_list", "surf_list", "dep_graph", "lut_list", "network", "addr0", "task")


@st.composite
def mutations(draw):
    """(which blob, byte, new value), a few of them; small, large and sign-changing values are likely."""
    value = st.one_of(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]), st.integers(0, 255))
    return draw(st.lists(st.tuples(st.integers(0), st.integers(0), value), min_size=1, max_size=6))


def mutate(loadable, changes):
    blobs = list(loadable.blobs)
    places = [index for index, blob in enumerate(blobs) if any(name in blob.name for name in DESCRIPTORS)]
    for which, at, value in changes:
        index = places[which % len(places)]
        content = bytearray(blobs[index].data)
        content[at % len(content)] = value
        blobs[index] = dataclasses.replace(blobs[index], data=memoryview(bytes(content)))
    return dataclasses.replace(loadable, blobs=tuple(blobs))


@pytest.mark.parametrize("config", ["auto", "nv_full"])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=mutations())
def test_mutated_descriptors_are_linted_examined_and_compared(lenet_loadable, config, changes):
    broken = mutate(lenet_loadable, changes)
    with contextlib.suppress(NvdlaError):  # descriptors that fit neither ABI
        report = lint(broken, config)
        assert all(finding.evidence and finding.advice for finding in report.findings)
        examine(broken, config)
        diff(lenet_loadable, broken)
