"""The ``.txn`` dialect of the RISC-V projects (RISC-V-NVDLA, Bare-metal-NVDLA-sw): byte addresses, bounded polls.

Lines as their scripts make them from a log and turn them into assembly: ``read_reg ADDRESS MASK VALUE  # actual addr:
WORD``. Their converters look 10 times, and 50,000 times where the remark names GLB.S_INTR_STATUS (0x0403) or
CDMA.S_CBUF_FLUSH_STATUS (0x0c03). With ``poll_limit`` the bound is the fifth word of the line, which they leave alone.
"""

from __future__ import annotations

from nvdla.csb.export import Export
from nvdla.csb.printers.txn import transactions
from nvdla.hardware.register_file import Register

FORMAT = "riscv-txn"
HELP = "the .txn dialect of RISC-V bare-metal projects: byte addresses from --csb-base, bounded polls"
CHECKS_MEMORY = True
OPTIONS = ("csb_base", "word_addresses", "poll_limit")


def write(export: Export) -> None:
    """Write the program in this form. Raises FormatError for what it cannot say."""
    for number, part in enumerate(export.parts):
        prefix = "" if len(export.parts) == 1 else f"part{number}_"
        export.save_lines(f"{prefix}{export.name}.txn", transactions(export, part, prefix, _RiscV(export)))


class _RiscV:
    """How the RISC-V projects have registers and waits."""

    def __init__(self, export: Export) -> None:
        self._export = export
        limit = export.options.poll_limit
        self.bound = f" {limit}" if limit else ""

    def register(self, register: Register) -> str:
        """The register's address."""
        return f"0x{self._export.address(register, False):x}"

    def remark(self, register: Register) -> str:
        """The word address, and the register's name."""
        return f"  # actual addr: 0x{register.address >> 2:04x} {register}"
