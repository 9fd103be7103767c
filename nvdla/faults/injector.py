"""The injector: runs of one network with faults, each at the cost of what comes after the fault."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from nvdla.errors import LinkError
from nvdla.execution.batch import lanes_for
from nvdla.faults.fault import Fault
from nvdla.faults.machine import FirmwareRuns
from nvdla.faults.network import Golden, StruckNetwork
from nvdla.faults.replay import FaultReplay
from nvdla.faults.resolve import resolve
from nvdla.faults.setup import Setup


class Injector:
    """Runs a network with faults on memory of its own, one run at a time (callers wait for one another)."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._lock = threading.RLock()
        self._network: StruckNetwork | None = None
        self._lanes: StruckNetwork | None = None
        self._firmware: FirmwareRuns | None = None

    def network(self, inputs: Sequence[Any] | None = None) -> StruckNetwork:
        """The network; its first run, on ``inputs`` (zeros by default), shows what it is made of."""
        with self._lock:
            if self._network is None:
                self._network = StruckNetwork.recorded(self._setup, inputs or self._zeros())
            return self._network

    def golden(self, inputs: Sequence[Any]) -> Golden:
        """The healthy run on raw inputs, for :meth:`run`. Raises NvdlaError."""
        with self._lock:
            network = self.network(inputs)
            if network.is_repeatable:
                return network.golden(inputs)
            fresh = StruckNetwork.recorded(self._setup, inputs)
            return Golden(tuple(bytes(each) for each in inputs), fresh.outputs(), [])

    def run(self, golden: Golden, faults: Sequence[Fault]) -> list[bytes]:
        """Raw outputs with faults. Raises NvdlaError for what refuses the faulty run; ScheduleError: it would hang."""
        with self._lock:
            network = self.network(golden.inputs)
            found = resolve(network, faults)
            if network.is_repeatable and not found.needs_firmware:
                return FaultReplay(network, found).run(golden)
            if self._firmware is None:
                self._firmware = FirmwareRuns(self._setup)
            return self._firmware.run(golden.inputs, found)

    def run_many(self, images: Sequence[Sequence[Any]], faults: Sequence[Fault]) -> list[list[bytes]]:
        """Raw outputs of images with faults: several images together where only convolutions are broken."""
        with self._lock:
            network = self.network(images[0]) if images else None
            if network is None:
                return []
            found = resolve(network, faults)
            lanes = self._beside(network, len(images)) if not (found.needs_firmware or found.pokes) else None
            if lanes is None or not network.is_repeatable:
                return [self.run(self.golden(image), faults) for image in images]
            replay = FaultReplay(lanes, resolve(lanes, faults))
            together = lanes.linked.lanes.count - 1
            results: list[list[bytes]] = []
            for first in range(0, len(images), together):
                results += replay.run_lanes(images[first : first + together])
            return results

    def _beside(self, network: StruckNetwork, images: int) -> StruckNetwork | None:
        """The network on memory with lanes, None where it takes none."""
        if not network.takes_lanes:
            return None
        wanted = lanes_for(images, network.linked.lanes.stride)
        if self._lanes is None or self._lanes.linked.lanes.count <= wanted:
            try:
                self._lanes = network.beside(wanted + 1)
            except LinkError:  # one image fits the memory limit, several do not
                return None
        return self._lanes

    def _zeros(self) -> list[bytes]:
        loadable = self._setup.link(False).loadable
        return [bytes(memory.size) for memory in loadable.inputs]
