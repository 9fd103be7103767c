"""Random TFLite graphs give what the reference interpreter computes."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")

from support.tflite_random import graph, main, verdict


@pytest.mark.parametrize("seed", [*range(8), 231])
def test_a_random_graph_is_within_a_few_units(seed):
    made = graph(seed)
    if made is None:
        pytest.skip("this seed gives no graph")
    assert verdict(*made)[0] in ("whole", "host")


@pytest.mark.slow
def test_two_thousand_random_graphs_are_right():
    assert main(2000) == 0
