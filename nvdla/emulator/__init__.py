"""The accelerator: memory, firmware, hardware, CPU operations, execution, faults and register traces."""

__all__: list[str] = []
