"""The extension: Model Explorer imports this module, and finds the classes in it.

Source: https://github.com/google-ai-edge/model-explorer/wiki (adapter extensions, node data providers).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nvdla.loadable import load as load_loadable
from nvdla.program.operation import Operation
from nvdla.util.escaping import Document, Json

try:
    from model_explorer import Adapter, AdapterMetadata, graph_builder
    from model_explorer.config_editor import TextInputConfigEditor
    from model_explorer.node_data_builder import GradientItem, GraphNodeData, NodeDataResult
    from model_explorer.node_data_provider import (
        GetConfigEditorsResult,
        NodeDataProvider,
        NodeDataProviderFilter,
        NodeDataProviderMetadata,
        NodeDataProviderResult,
    )
except ImportError:
    raise ImportError("nvdla.report.model_explorer needs Model Explorer: pip install 'nvdla[explorer]'") from None

from nvdla.analysis.cycles.document import cycles_of
from nvdla.analysis.graph import COLORS, graph_document
from nvdla.analysis.study import Study
from nvdla.analysis.views import subgraphs
from nvdla.errors import NvdlaError, shape_text
from nvdla.loadable.descriptors.fields import fields
from nvdla.program.naming import names_for
from nvdla.report import model_explorer as node_data
from nvdla.report.document import Side, make_side

ADAPTER = "nvdla_adapter"
ENDINGS = ["nvdla", "loadable"]
CLOCK = 1000.0


def study_of(path: str) -> Study:
    """The study of a file with the names of its layer file. Raises NvdlaError."""
    return Study.of(load_loadable(path), layers=names_for(path).layers)


class NvdlaAdapter(Adapter):
    """Loadables as graphs of Model Explorer."""

    metadata = AdapterMetadata(
        id=ADAPTER,
        name="NVDLA loadable",
        description="Operations, tensors and descriptors of loadables for NVIDIA's Deep Learning Accelerator",
        source_repo="http://nvdla.org",
        fileExts=ENDINGS,
    )

    def convert(self, model_path: str, settings: Mapping[str, Json]) -> dict[str, Json]:
        """The graph of a file: one node an operation, and one a bound tensor."""
        return {"graphs": [graph_of(study_of(model_path))]}


def graph_of(study: Study) -> graph_builder.Graph:
    """A study as a graph; operations are in the namespace of their subgraph and layer."""
    document = graph_document(study)
    tensors = {row["id"]: row for row in document["tensors"]}
    namespaces = subgraphs(study.program, study.values)
    nodes = [_tensor(row) for row in tensors.values() if row["kind"] in ("input", "output", "unset")]
    before = {chain[at + 1].label: chain[at].label for chain in study.chains for at in range(len(chain) - 1)}
    for node, row, space in zip(study.operations, document["nodes"], namespaces, strict=True):
        graph_node = graph_builder.GraphNode(
            row["name"], f"{row['op_type']} {row['name']}", "/".join(filter(None, (space, node.layer)))
        )
        graph_node.attrs = [graph_builder.KeyValue(key, text) for key, text in _attributes(study, node, row)]
        if node.label in before:
            graph_node.incomingEdges.append(graph_builder.IncomingEdge(before[node.label], "0", "on the fly"))
        for read in row["inputs"]:
            graph_node.incomingEdges += _edges(tensors[read["tensor"]], read["role"])
        graph_node.outputsMetadata = [
            graph_builder.MetadataItem(str(place), _about(tensors[number]))
            for place, number in enumerate(row["outputs"])
        ]
        graph_node.style = graph_builder.GraphNodeStyle(borderColor=COLORS[row["op_type"].lower()])
        nodes.append(graph_node)
    return graph_builder.Graph(study.title, nodes)


def _tensor(row: Document) -> graph_builder.GraphNode:
    graph_node = graph_builder.GraphNode(f"tensor {row['id']}", f"{row['name']} ({row['kind']})", "")
    graph_node.outputsMetadata = [graph_builder.MetadataItem("0", _about(row))]
    if row["producer"]:
        graph_node.incomingEdges.append(graph_builder.IncomingEdge(row["producer"]))
    return graph_node


def _edges(tensor: Mapping[str, Json], role: str) -> list[graph_builder.IncomingEdge]:
    """From the operation that writes a tensor, else from the tensor's own node; weights have none."""
    if tensor["kind"] == "constant":
        return []
    return [graph_builder.IncomingEdge(tensor["producer"] or f"tensor {tensor['id']}", "0", role)]


def _about(row: Document) -> list[graph_builder.KeyValue]:
    shape = shape_text(row["shape"]) if row["shape"] else ""
    about = {"__tensor_tag": row["name"], "shape": shape, "bytes": row["bytes"], "memory": row["memory"]}
    return [graph_builder.KeyValue(key, str(value)) for key, value in about.items() if value not in (None, "")]


def _attributes(study: Study, node: Operation, row: Document) -> list[tuple[str, str]]:
    estimate = study.estimates[node.key]
    about = {"operation": row["name"], "layer": row["layer"], "what": row["what"], "precision": row["precision"]}
    about |= {"cycles": cycles_of(study, node), "bound by": estimate.bound, "MACs": estimate.macs or None}
    attributes = [(key, str(value)) for key, value in about.items() if value is not None]
    for structure in (node.op, None if node.type is None else node.surface):
        shown = [field for field in fields(structure) if not field.reserved] if structure is not None else []
        attributes += [
            (field.name, field.meaning or str(field.value)) for field in shown if not isinstance(field.value, list)
        ]
    return attributes


_INPUT = TextInputConfigEditor(id="input", label="Input: path of an image, .npy, .dimg or .bin", required=True)
_OTHER = TextInputConfigEditor(id="other", label="Reference: path of the other loadable", required=True)
_FILTER = NodeDataProviderFilter(adapterIds=[ADAPTER])


class NvdlaData(NodeDataProvider):
    """Numbers that are laid over the graph."""

    metadata = [  # noqa: RUF012 - the base class asks for it
        NodeDataProviderMetadata(
            "nvdla_cycles", "NVDLA: cycles and MAC use", "Estimates of the cycle model", filter=_FILTER
        ),
        NodeDataProviderMetadata("nvdla_saturation", "NVDLA: saturation of a run", "For your input", filter=_FILTER),
        NodeDataProviderMetadata(
            "nvdla_snr", "NVDLA: SNR against another", "Both loadables run on the same input", filter=_FILTER
        ),
    ]

    def get_config_editors(self, provider_id: str) -> GetConfigEditorsResult:
        """Return the notes that come first."""
        asked = {"nvdla_saturation": [_INPUT], "nvdla_snr": [_OTHER, _INPUT]}
        return GetConfigEditorsResult(asked.get(provider_id, []))

    def run(
        self, provider_id: str, model_path: str, graph_id: str, config_values: Document, graph: object
    ) -> NodeDataProviderResult:
        """The numbers of one provider; the result contains errors."""
        try:
            return NodeDataProviderResult(self._data(provider_id, model_path, config_values))
        except NvdlaError as error:
            return NodeDataProviderResult(error=str(error))
        except OSError as error:
            return NodeDataProviderResult(error=f"{error.filename}: {error.strerror}")

    def _data(self, provider: str, path: str, values: Document) -> list[GraphNodeData]:
        if provider == "nvdla_cycles":
            study = study_of(path)
            return [_made("cycles", node_data.cycles(study)), _made("MAC use, %", node_data.mac_use(study), True)]
        side = _ran(path, values)
        if provider == "nvdla_saturation":
            return [_made("saturation, %", node_data.saturation(side))]
        ratios = node_data.snr(side, _ran(str(values.get("other", "")), values))
        return [_made("SNR (dB against the reference, real values)", ratios, True)]


def _ran(path: str, values: Mapping[str, Json]) -> Side:
    """A file with a run on the input that was named."""
    given = str(Path(str(values.get("input", ""))).expanduser())
    return make_side(study_of(path), names_for(path), CLOCK, lambda runtime: [runtime.surfaces(given)])[0]


def _made(name: str, numbers: node_data.Numbers, falling: bool = False) -> GraphNodeData:
    (document,) = node_data.document("", name, numbers, falling).values()
    results = {label: NodeDataResult(**result) for label, result in document["results"].items()}
    return GraphNodeData(results, name, gradient=[GradientItem(**stop) for stop in document["gradient"]])
