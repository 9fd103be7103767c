"""The ``.txn`` dialect of the RISC-V projects (RISC-V-NVDLA, Bare-metal-NVDLA-sw): byte addresses, bounded polls."""

from __future__ import annotations

from nvdla.csb.export import Export
from nvdla.csb.printers.txn import transactions

FORMAT = "riscv-txn"
HELP = "the .txn dialect of RISC-V bare-metal projects: byte addresses from --csb-base, bounded polls"


def write(export: Export) -> None:
    """Write the program in this form. Raises FormatError for what it cannot say."""
    for number, part in enumerate(export.parts):
        prefix = "" if len(export.parts) == 1 else f"part{number}_"
        lines = transactions(export, part, prefix, lambda register: export.address(register, False))
        limit = export.options.poll_limit
        bound = (
            [f"# poll_limit {limit}: a read_reg that has not matched after so many reads has failed"] if limit else []
        )
        export.save(f"{prefix}{export.name}.txn", "\n".join([*bound, *lines, ""]))
