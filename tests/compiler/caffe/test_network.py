"""The .prototxt: which layers run, in which forms they may be written, and what is refused."""

import time

import pytest
from support.caffe_writer import layer, prototxt

from nvdla import FormatError
from nvdla.compiler.caffe import read_network


@pytest.fixture
def read(tmp_path):
    def call(text):
        (tmp_path / "net.prototxt").write_text(text)
        return read_network(tmp_path / "net.prototxt")

    return call


def names(network):
    return [each.name for each in network.layers]


@pytest.mark.parametrize(
    ("rules", "runs"),
    [
        ("", True),
        ("include { phase: TEST }", True),
        ("include { phase: TRAIN }", False),
        ("exclude { phase: TRAIN }", True),
        ("exclude { phase: TEST }", False),
        ("include { phase: TRAIN } include { phase: TEST }", True),
        ("include { min_level: 1 }", False),
        ("include { max_level: 0 }", True),
        ("include { phase: TEST stage: 'deploy' }", False),
        ("include { not_stage: 'deploy' }", True),
        ("exclude { stage: 'a' } exclude { not_stage: 'b' }", False),
        ("include { }", True),
    ],
)
def test_rules_choose_the_layers_of_the_test_phase(read, rules, runs):
    network = read(prototxt(layer("ReLU", rules), layer("TanH", name="always")))
    assert names(network) == ["layer"] * runs + ["always"]


def test_stages_and_levels_come_from_the_state(read):
    state = "state { level: 2 stage: 'deploy' }\n"
    rule = "include { min_level: 2 stage: 'deploy' }"
    assert names(read(state + prototxt(layer("ReLU", rule)))) == ["layer"]


def test_many_stages_and_many_rules_take_the_time_of_both(read):
    """Not of their product: every rule would build the set of stages again."""
    stages = " ".join(f"stage: 's{number}'" for number in range(4000))
    state = f"state {{ {stages} }}\n"
    layers = [layer("ReLU", "include { stage: 's1' }", name=f"r{number}") for number in range(2000)]
    with_stages, with_one = state + prototxt(*layers), "state { stage: 's1' }\n" + prototxt(*layers)
    assert len(names(read(with_stages))) == 2000
    assert _least_seconds(read, with_stages) < 2 * _least_seconds(read, with_one) + 0.3


def _least_seconds(read, text):
    """Of three tries: Python may collect the garbage of other tests within one."""
    taken = []
    for _ in range(3):
        began = time.thread_time()
        read(text)
        taken.append(time.thread_time() - began)
    return min(taken)


@pytest.mark.parametrize(
    "head",
    [
        'input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8',
        'input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }',
        'layer { name: "i" type: "Input" top: "data" input_param { shape { dim: [1, 3, 8, 8] } } }',
        'layer { name: "i" type: "MemoryData" top: "data" top: "label" memory_data_param { batch_size: 1 channels: 3 '
        "height: 8 width: 8 } }",
        'layers { name: "i" type: MEMORY_DATA top: "data" memory_data_param { batch_size: 1 channels: 3 height: 8 '
        "width: 8 } }",
    ],
)
def test_inputs_are_declared_in_several_ways(read, head):
    old = head.startswith("layers")
    text = 'layers { name: "r" type: RELU bottom: "data" top: "out" }' if old else layer("ReLU")
    assert dict(read(f"{head}\n{text}").inputs) == {"data": (1, 3, 8, 8)}


def test_a_data_base_as_input_leaves_the_shape_open(read):
    data = 'layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "x" batch_size: 4 } }\n'
    loss = layer("SoftmaxWithLoss", bottom=["out", "label"], top="loss", name="loss")
    network = read(data + layer("InnerProduct", "inner_product_param { num_output: 4 }") + loss)
    assert dict(network.inputs) == {"data": None}
    assert names(network) == ["layer"]


def test_old_layers_carry_the_new_types_names(read):
    network = read(
        'input: "data" layers { name: "c" type: CONVOLUTION bottom: "data" top: "c" blobs_lr: 1 weight_decay: 0 '
        'convolution_param { num_output: 2 kernel_size: 3 } } layers { name: "l" type: LRN bottom: "c" top: "l" } '
        'layers { name: "a" type: 35 bottom: "l" top: "a" }'
    )
    assert [each.type for each in network.layers] == ["Convolution", "LRN", "AbsVal"]
    assert network.layers[0].message["convolution_param"]["num_output"] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "got an empty file"),
        (prototxt(layer("ReLU", "include { } exclude { }")), "must have include or exclude rules, got both"),
        (prototxt(layer("ReLU")) + " layers { type: RELU }", "must all be given as 'layer' or all as 'layers'"),
        ('layer { name: "x" }', "layer 'x': type: must be given"),
        ("layers { layer { name: 'conv' type: 'conv' } }", "upgrade_net_proto_text"),
        ("input: 'data' input_dim: [1, 1] " + layer("ReLU"), "input_dim: must be 4 numbers for 1 inputs, got 2"),
        ("input: 'a' input: 'b' input_shape { dim: 1 } " + layer("ReLU"), "shapes: must be 2, one per input, got 1"),
        (
            "input: 'a' input_shape { } input_dim: 1 " + layer("ReLU"),
            "must be given as input_shape or input_dim, got both",
        ),
        (
            layer("Input", "input_param { shape { } shape { } shape { } }", [], ["a", "b"]),
            "shapes: must be 2, one per top, got 3",
        ),
    ],
)
def test_networks_that_make_no_sense_are_refused(read, text, said):
    with pytest.raises(FormatError) as raised:
        read(text)
    assert said in str(raised.value)


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "net.prototxt").write_bytes(b'name: "\xff"')
    with pytest.raises(FormatError, match="byte 7 is not UTF-8"):
        read_network(tmp_path / "net.prototxt")
    (tmp_path / "big.prototxt").write_bytes(b" " * ((4 << 20) + 1))
    with pytest.raises(FormatError, match="must have at most 4194304"):
        read_network(tmp_path / "big.prototxt")


def test_tops_are_counted(read):
    """A Split of as many tops as a file holds becomes as many nodes."""
    tops = "".join(f'top: "t{number}" ' for number in range(32_769))
    with pytest.raises(FormatError, match="tops of all layers: must be at most 32768, got 32771"):
        read(prototxt(layer("ReLU"), f'layer {{ name: "s" type: "Split" bottom: "data" {tops} }}\n'))
