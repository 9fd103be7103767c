"""Cycles and schedule of operations: a calibrated cycle model, a schedule, a trace for viewers.

Without a loadable, for a compiler that chooses among tilings (:mod:`nvdla.analysis.cycles.estimate`)::

    from nvdla.analysis.cycles.estimate import convolution, operation_cycles, queue_cycles
    from nvdla.emulator.hardware.configuration import configuration

    config = configuration("nv_small")          # or another built-in name.
    whole = convolution(config, (64, 14, 14), (64, 14, 14), (3, 3), data_banks=4, weight_banks=10)
    operation_cycles(whole, config).total       # alone, from its enabling to its interrupt.
    queue_cycles([whole, whole], config)        # both as the firmware programs them, fetches overlapped.

A convolution alone takes some 0.2 ms of computing, a queue the same for each of its operations. Nothing here runs an
operation or needs its data. Errors against NVIDIA's RTL, by kind of operation: benchmarks/RESULTS.md.
"""

__all__ = ["estimate", "hardware", "simulation"]
