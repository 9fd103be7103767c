"""All fuzz targets: what they feed, their mutator, and the seeds they start from."""

from __future__ import annotations

import gzip
import importlib
import io
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"
REGRESSIONS = Path(__file__).parent / "regressions"
MAX_SEED = 1 << 17

Mutator = Callable[[bytes, random.Random], bytes | None]


@dataclass(frozen=True)
class Target:
    """``module``:``function`` takes one input. ``seeds`` are globs below the corpus and the project; ``mutator``, where
    it gives None, leaves the input to the byte mutator. ``max_len``: bytes of an input. ``elsewhere``: packages of the
    toolkit whose coverage guides other targets, and not this one: watching them takes as long as running them.
    ``needs``: a package without which there is nothing to feed."""

    name: str
    module: str
    function: str
    seeds: tuple[str, ...]
    mutator: str = ""
    max_len: int = 1 << 15
    elsewhere: tuple[str, ...] = ()
    needs: str = ""

    def one_input(self) -> Callable[[bytes], None]:
        """The function; importing it imports the toolkit."""
        module = importlib.import_module(self.module)
        if self.module == "fuzz_containers":
            return module.target(self.function)
        return getattr(module, self.function)

    def mutate(self, data: bytes, rng: random.Random) -> bytes:
        """One changed input."""
        import fuzz_mutator

        structured = getattr(fuzz_mutator, self.mutator)(data, rng) if self.mutator and rng.randrange(5) else None
        return fuzz_mutator.inherit(data, fuzz_mutator.mutate_bytes(data, rng)) if structured is None else structured

    def seed_inputs(self) -> list[bytes]:
        """Regressions first, then real files, small ones first."""
        found = [path.read_bytes() for path in sorted((REGRESSIONS / self.name).glob("*"))]
        made = sorted(self._seeds(), key=len)
        return found + [each for each in made if len(each) <= min(MAX_SEED, self.max_len)]

    def _seeds(self) -> Iterator[bytes]:
        if self.name in ("cfg", "txn"):
            yield from _trace_seeds(self.name)
        if self.name == "image":
            yield from _images()
        if self.name == "caffe":
            yield from _caffe_networks()
        if self.name == "builder":
            yield from (random.Random(number).randbytes(64) for number in range(48))
        if self.name == "operators":
            yield from (random.Random(number).randbytes(12) for number in range(48))
        if self.module == "fuzz_writers":
            yield from importlib.import_module(self.module).seeds()
        if self.name == "onnx":
            yield from _models()
        if self.name == "tflite":
            yield from importlib.import_module(self.module).seeds()
        if self.name == "npy":
            yield from _arrays()
        if self.name == "yaml":
            yield from _YAML
        if self.mutator == "mutate_loadable":
            yield from _networks()
        if self.name == "serve":
            yield from _calls()
        if self.name in ("csb", "calibration"):
            import fuzz_logs

            yield from fuzz_logs.seeds_of_logs() if self.name == "csb" else fuzz_logs.seeds_of_tables()
        yield from _created(self.name)
        for base in (CORPUS, ROOT):
            for pattern in self.seeds:
                for path in sorted(base.glob(pattern)):
                    if path.is_file() and path.stat().st_size <= MAX_SEED:
                        data = path.read_bytes()
                        yield gzip.decompress(data) if path.suffix == ".gz" else data


_NETWORKS = ("loadables/*/*.nvdla", "kmd-regression/*_fbuf", "samples/*.loadable")

_BELOW_TOOLS = ("loadable", "emulator.memory", "emulator.hardware", "emulator.firmware", "emulator.cpu")

TARGETS = {
    target.name: target
    for target in (
        Target("load", "fuzz_load", "one_input", _NETWORKS, "mutate_loadable", 10 << 10),
        Target("run", "fuzz_run", "one_input", _NETWORKS, "mutate_loadable", 12 << 10, ("loadable",)),
        Target("tools", "fuzz_tools", "one_input", _NETWORKS, "mutate_loadable", 4608, _BELOW_TOOLS),
        Target("cfg", "fuzz_trace", "cfg_input", (), "mutate_text", 1 << 16),
        Target("txn", "fuzz_trace", "txn_input", (), "mutate_text", MAX_SEED),
        Target("csb", "fuzz_logs", "csb_input", (), "mutate_text", 1 << 14),
        Target("calibration", "fuzz_logs", "calibration_input", ("loadables/*/calib.json",), "", 1 << 11),
        Target("caffe", "fuzz_caffe", "one_input", (), "mutate_text", 1 << 13, needs="onnx"),
        Target("onnx", "fuzz_onnx", "one_input", (), "", 1 << 12, needs="onnx"),
        Target("tflite", "fuzz_tflite", "one_input", ("tflite/*.tflite",), "mutate_tflite", 1 << 15, needs="onnx"),
        Target("operators", "fuzz_operators", "one_input", (), "mutate_seed", 1 << 15, ("kernels",), needs="onnx"),
        Target("dimg", "fuzz_tensors", "dimg_input", ("kmd-regression/*.dimg", "samples/labels.txt"), "", 1 << 12),
        Target("npy", "fuzz_tensors", "npy_input", ("loadables/*/input.npy",), "", 1 << 12),
        Target("image", "fuzz_tensors", "image_input", ("samples/*0.p?m",), "", 1 << 12),
        Target("yaml", "fuzz_tensors", "yaml_input", (), "mutate_text", 1 << 11),
        Target("params", "fuzz_params", "one_input", ("formats/params/**/*.params",), "", 1 << 13),
        Target("mlf", "fuzz_mlf", "one_input", ("formats/mlf/**/*.tar",), "", 1 << 15),
        Target("crt", "fuzz_crt", "one_input", ("formats/params/*.params",), "", 1 << 9),
        Target("builder", "fuzz_builder", "one_input", (), "", 96, ("kernels",)),
        Target("serve", "fuzz_serve", "one_input", (), "", 1 << 14),
        Target("write-program", "fuzz_writers", "program_input", (), "", 1 << 10, _BELOW_TOOLS),
        Target("write-report", "fuzz_writers", "report_input", (), "", 1 << 10, _BELOW_TOOLS),
        Target("write-export", "fuzz_writers", "export_input", (), "", 1 << 10, _BELOW_TOOLS, needs="onnx"),
        Target("write-container", "fuzz_writers", "create_input", (), "", 1 << 9),
        Target("tvm-params", "fuzz_containers", "tvm-params", ("formats/params/**/*.params",), "", 1 << 13),
        Target("irpa", "fuzz_irpa", "one_input", ("formats/irpa/**/*.irpa",), "", 1 << 13),
        Target("vmfb", "fuzz_vmfb", "one_input", ("formats/vmfb/**/*.vmfb",), "", 1 << 14),
        Target("npz", "fuzz_containers", "npz", ("formats/**/*.npz", "loadables/*/reference.npz"), "", 1 << 13),
        Target("safetensors", "fuzz_containers", "safetensors", ("formats/**/*.safetensors",), "", 1 << 12),
        Target("gguf", "fuzz_containers", "gguf", ("formats/**/*.gguf",), "", 1 << 12),
    )
}  # fmt: skip


def _trace_seeds(kind: str) -> Iterator[bytes]:
    """Small traces of the corpus with their images, as one input each."""
    from fuzz_trace import pack

    ending = "*.cfg" if kind == "cfg" else "input.txn"
    chosen: dict[str, int] = {}
    places = ("trace-tests/*/*", "register-traces/*/*/*")
    for path in sorted(path for place in places for path in CORPUS.glob(f"{place}/{ending}")):
        group = f"{path.parts[-3]}/{path.parent.name.split('_')[0]}"
        images = {each.name: each for each in path.parent.iterdir() if each.suffix in (".dat", ".bin", ".mem")}
        named = {name: each for name, each in images.items() if name.encode() in path.read_bytes()}
        limit = 1 << 15 if kind == "cfg" else 100_000
        if sum(each.stat().st_size for each in named.values()) > limit or chosen.get(group, 0) >= 3:
            continue
        chosen[group] = chosen.get(group, 0) + 1
        config = next((part for part in path.parts if part.startswith("nv_")), "nv_small")
        yield pack(path.read_bytes(), {name: each.read_bytes() for name, each in named.items()}, config)
    yield pack(_SMALL[kind], {}, "nv_small" if kind == "cfg" else "nv_full")


_SMALL = {
    "cfg": b"""mem_init(pri_mem, 0x80000000, 0x1000, RANDOM);
mem_reserve(pri_mem, 0x80001000, 0x1000);
reg_write(NVDLA_PDP.S_POINTER_0, 0x0);
reg_write(NVDLA_PDP_RDMA.D_SRC_BASE_ADDR_LOW_0, 0x80000000);
reg_write(NVDLA_PDP.D_DST_BASE_ADDR_LOW_0, 0x80001000);
reg_write(NVDLA_PDP.D_OP_ENABLE_0, 0x1);
sync_notify(NVDLA_PDP, end);
intr_notify(PDP_0, done);
check_crc(done, 1, 0x80001000, 0x100, 0x0);
""",
    "txn": b"""write_mem 0x80000000 0xffff 0x00112233445566778899aabbccddeeff
write_reg 0xffff0003 0x00000000
read_reg 0xffff0000 0x00000000 0x00000000
wait
read_mem 0x80000000 0xffffffffffffffffffffffffffffffff 0x00112233445566778899aabbccddeeff
""",
}


def _arrays() -> Iterator[bytes]:
    """Small .npy files of each version and order."""
    import numpy as np

    for dtype, shape, order in (("i1", (1, 3, 4, 5), "C"), ("<f2", (3, 4, 5), "F"), (">i2", (60,), "C")):
        stream = io.BytesIO()
        np.save(stream, np.asarray(np.arange(60).reshape(shape), dtype, order=order))
        yield stream.getvalue()


_YAML = (
    b"layers:\n  0/1: conv1  # task/operation\n  0/2: 'pool1'\nscales:\n  conv1: 0.0203\n  pool1: 1e-3\n",
    b'layers: {0/7: "dense\\x41", 1/0: &a x, 1/1: *a}\nscales: {dense: .25, y: !!float 0x1f}\n',
    b"%YAML 1.1\n---\n- |\n  text\n- >-\n  folded\n  text\n- ? key\n  : [~, null, true, 0o7, -.inf, .NaN]\n...\n",
    b"a: &x {b: !!str 1}\nc:\n  <<: *x\n",
)


def _networks() -> Iterator[bytes]:
    """Loadables made by hand, which need nothing beside the project."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.handmade import Op, chain, copy, network, pool

    from nvdla.loadable import to_bytes
    from nvdla.loadable.descriptors.enums import Event, OpType

    mixed = [
        Op(OpType.SDP, copy((1, 0), (3, 0)), consumers={OpType.PDP: (1, Event.OP_COMPLETED)}),
        Op(OpType.PDP, pool((3, 0), (2, 0)), waits=1),
    ]
    for ops in (chain(1), chain(3), chain(2, OpType.PDP, pool), mixed):
        yield to_bytes(network(ops))


def _calls() -> Iterator[bytes]:
    """What a remote caller does with a small network."""
    import fuzz_serve

    yield from fuzz_serve.seeds(min(_networks(), key=len))


def _created(name: str) -> Iterator[bytes]:
    """A container of two small arrays, in formats that can be created."""
    import numpy as np

    from nvdla.errors import FormatError
    from nvdla.interop.containers.registry import formats
    from nvdla.tensors.parameters import Parameter

    name = "tvm-params" if name == "params" else name
    if name in formats():
        arrays = {"weights": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.arange(3, dtype=np.int8)}
        try:
            yield formats()[name].create([Parameter.from_array(key, array) for key, array in arrays.items()])
        except FormatError:
            return


def _models() -> Iterator[bytes]:
    """Small ONNX models: a convolution with pooling and a product, and elements that move."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    def model(nodes: list, shape: tuple[int, ...], **constants: np.ndarray) -> bytes:
        held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", None))]
        ends[1].type.tensor_type.shape.dim.add().dim_param = "n"
        made = helper.make_model(helper.make_graph(nodes, "net", ends[:1], ends[1:], held), ir_version=8)
        made.opset_import[0].version = 17
        return made.SerializeToString()

    node = helper.make_node
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(2, 2, 3, 3)).astype("f4"), "v": rng.normal(size=(18, 3)).astype("f4")}
    layers = [node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"])]
    layers += [node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2]), node("Flatten", ["c"], ["d"])]
    yield model([*layers, node("Gemm", ["d", "v"], ["y"])], (1, 2, 6, 6), **weights)
    moves = [node("Transpose", ["x"], ["a"], perm=[0, 2, 3, 1]), node("Reshape", ["a", "s"], ["b"])]
    yield model([*moves, node("Sigmoid", ["b"], ["y"])], (1, 2, 4, 4), s=np.array([1, 8, 4]))


def _caffe_networks() -> Iterator[bytes]:
    """The corpus's small networks with their weights; without it, some layers as text."""
    from fuzz_caffe import pack

    for path in sorted(CORPUS.glob("loadables/*/net.prototxt")):
        weights = path.with_suffix(".caffemodel")
        if weights.is_file() and weights.stat().st_size < 6000:
            yield pack(path.read_bytes(), weights.read_bytes())
    yield pack(_CAFFE_TEXT, bytes.fromhex("a206180a016112013a3a103a040a020102 2a08 0000803f 00000040".replace(" ", "")))


_CAFFE_TEXT = b"""name: "small"
state { phase: TEST level: 1 stage: "deploy" }
input: "data"
input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }
layer { name: "p" type: "Pooling" bottom: "data" top: "p" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "r" type: "ReLU" bottom: "p" top: "p" }
layer { name: "s" type: "Slice" bottom: "p" top: "s0" top: "s1" slice_param { axis: 2 slice_point: 3 } }
layer { name: "f" type: "Flatten" bottom: "s0" top: "f" }
layer { name: "v" type: "Reshape" bottom: "f" top: "v" reshape_param { shape { dim: 0 dim: -1 } } }
layer { name: "o" type: "Softmax" bottom: "v" top: "o" include { phase: TEST stage: "deploy" min_level: 0 } }
layer { name: "x" type: "TanH" bottom: "o" top: "o" exclude { max_level: 3 } exclude { not_stage: "a" } }
"""


def _images() -> Iterator[bytes]:
    """One small picture of each kind and mode."""
    from PIL import Image

    for mode in ("L", "RGB", "RGBA", "P", "1"):
        for kind in ("PNG", "JPEG", "PPM"):
            if (kind == "JPEG" and mode not in ("L", "RGB")) or (kind == "PPM" and mode in ("RGBA", "P")):
                continue
            stream = io.BytesIO()
            Image.new(mode, (5, 4), 1).save(stream, kind)
            yield stream.getvalue()
