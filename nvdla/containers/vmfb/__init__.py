"""IREE VM bytecode modules (.vmfb): read, verify, disassemble, interpret, re-wrap."""
