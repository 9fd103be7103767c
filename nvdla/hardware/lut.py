"""The two lookup tables of the SDP and of the CDP and the register port that fills them."""

from __future__ import annotations

import numpy as np

LE_ENTRIES = 65
LO_ENTRIES = 257


class LookupTables:
    """LE (65 entries) and LO (257 entries), int16 words (fp16 bit patterns in fp16 mode).

    The port is S_LUT_ACCESS_CFG (ADDR, TABLE_ID 0 = LE 1 = LO, ACCESS_TYPE 0 = read 1 = write) and
    S_LUT_ACCESS_DATA; the address counts up with every access. Both register groups share the tables.
    """

    def __init__(self) -> None:
        self.le = np.zeros(LE_ENTRIES, np.int16)
        self.lo = np.zeros(LO_ENTRIES, np.int16)
        self._address = 0
        self._table = self.le
        self._writing = False

    def written(self, register: str, value: int) -> None:
        """Hook for register writes of the unit that owns the tables. Addresses behind the table are ignored."""
        if register == "S_LUT_ACCESS_CFG":
            self._address = value & 0x3FF
            self._table = self.lo if value >> 16 & 1 else self.le
            self._writing = bool(value >> 17 & 1)
        elif register == "S_LUT_ACCESS_DATA" and self._writing:
            if self._address < self._table.size:
                self._table[self._address] = np.uint16(value & 0xFFFF).astype(np.int16)
            self._address += 1

    def read(self, register: str, value: int) -> int:
        """Hook for register reads: S_LUT_ACCESS_DATA returns the next entry."""
        if register != "S_LUT_ACCESS_DATA" or self._writing:
            return value
        entry = int(self._table[self._address]) & 0xFFFF if self._address < self._table.size else 0
        self._address += 1
        return entry
