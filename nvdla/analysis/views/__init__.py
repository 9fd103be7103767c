"""What is in a loadable, as plain data: one function a view, each a list of rows with stable keys."""

from nvdla.analysis.views.hexdump import annotated_rows, hexdump_lines
from nvdla.analysis.views.operations import graph_rows, operation_rows
from nvdla.analysis.views.views import (
    blob_rows,
    memory_rows,
    overview,
    relocation_rows,
    task_rows,
    tensor_rows,
)

__all__ = [
    "annotated_rows",
    "blob_rows",
    "graph_rows",
    "hexdump_lines",
    "memory_rows",
    "operation_rows",
    "overview",
    "relocation_rows",
    "task_rows",
    "tensor_rows",
]
