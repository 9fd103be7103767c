"""A small model library as bytes of a tar archive."""

from __future__ import annotations

import json

import numpy as np

from nvdla.interop.containers.tvm import params, tar
from nvdla.interop.containers.tvm.tar import TarMember
from nvdla.tensors.parameters import Parameter


def graph(**changes) -> dict:
    """x -> f(x, w) -> out."""
    document = {
        "nodes": [{"op": "null", "name": "x", "inputs": []}, {"op": "null", "name": "w", "inputs": []},
                  {"op": "tvm_op", "name": "f", "attrs": {"func_name": "f"}, "inputs": [[0, 0, 0], [1, 0, 0]]}],
        "arg_nodes": [0, 1], "heads": [[2, 0, 0]], "node_row_ptr": [0, 1, 2, 3],
        "attrs": {"dltype": ["list_str", ["int8", "int8", "int8"]], "storage_id": ["list_int", [0, 1, 2]],
                  "shape": ["list_shape", [[2, 3], [6], [4]]]},
    }  # fmt: skip
    return document | changes


def metadata(**changes) -> dict:
    module = {
        "model_name": "net", "style": "full-model", "executors": ["graph"], "target": ["c"], "export_datetime": "now",
        "memory": {"functions": {"main": [{"device": 1, "workspace_size_bytes": 0, "constants_size_bytes": 6,
                                           "io_size_bytes": 10, "inputs": {"x": {"size": 6, "dtype": "int8"}},
                                           "outputs": {"output": {"size": 4, "dtype": "int8"}}}],
                                 "operator_functions": [{"function_name": "f", "workspace": []}]},
                   "sids": [{"storage_id": 0, "size_bytes": 6, "input_binding": "x"},
                            {"storage_id": 1, "size_bytes": 6, "input_binding": "w"},
                            {"storage_id": 2, "size_bytes": 4}]},
    }  # fmt: skip
    return {"version": 7, "modules": {"net": module | changes}}


SOURCE = b'static const TVMFuncRegistry r = {\n    "\\001\\000f\\0",\n    functions,\n};\n'


def library(**files: bytes | None) -> bytes:
    """A small correct library of version 7, with files replaced by the given ones (keys: see below)."""
    contents = {
        "metadata": ("metadata.json", json.dumps(metadata()).encode()),
        "graph": ("executor-config/graph/net.graph", json.dumps(graph()).encode()),
        "params": ("parameters/net.params", params.write([Parameter.from_array("w", np.arange(6, dtype=np.int8))])),
        "source": ("codegen/host/src/net_lib0.c", SOURCE), "relay": ("src/net.relay", b"def @main() {}\n"),
    }  # fmt: skip
    members = []
    for key, (path, data) in contents.items():
        data = files.get(key, data)
        if data is not None:
            members.append(TarMember(f"./{path}", "file", memoryview(data)))
    return tar.write(members)
