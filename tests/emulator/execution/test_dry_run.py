"""A dry run refuses what a run refuses, with the same words."""

import dataclasses

import pytest

import nvdla
from nvdla.emulator.execution.dry_run import dry_run
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import NvdlaError
from nvdla.loadable.descriptors.abi import abi_named


def of_operation(index, record, field, value):
    """A change of one field of a surface's cube, or of an operation ("op")."""

    def change(task):
        owner = task.operation(index)
        setattr(owner.op if record == "op" else getattr(owner.surface, record), field, value)

    return change


CASES = {
    "an SDP wider than its convolution": (of_operation(1, "src_data", "height", 23), "the convolution delivers"),
    "a PDP of more surfaces than its SDP": (of_operation(2, "src_data", "channel", 9), "the SDP delivers"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_raises_the_error_of_a_run(lenet_loadable, plant, case):
    change, text = CASES[case]
    broken = plant(lenet_loadable, change)
    problem, _ = dry_run(broken, abi_named("new"), configuration("nv_small"))
    assert problem is not None and text in problem
    runtime = nvdla.Runtime(broken, "nv_small")
    with pytest.raises(NvdlaError) as raised:
        runtime.run([bytes(tensor.size) for tensor in runtime.inputs])
    assert problem.removeprefix("the dry run does not finish: ") in str(raised.value)


@pytest.mark.parametrize(("bits", "fits"), [(32, True), (31, False)])
def test_an_engine_reaches_no_address_beyond_the_bus(lenet_loadable, bits, fits):
    """The emulator places DRAM at 0xc0000000."""
    config = dataclasses.replace(configuration("nv_small"), name="narrow", address_bits=bits)
    problem, _ = dry_run(lenet_loadable, abi_named("new"), config)
    assert problem is None if fits else f"must fit {bits} address bits of the configuration, got 0x" in problem
