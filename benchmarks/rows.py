"""The rows of the table: each measures one thing and compares it with what it is held against."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

import measure
import networks
import numpy as np

import nvdla
from nvdla.kernels.jit.compilation import fallback_work

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / ".." / "shared" / "corpus" / "loadables"
SAMPLES = ROOT / "samples"
BATCH = 64
Run = TypeVar("Run")


@dataclass(frozen=True)
class Options:
    """``seconds``: duration of each row; ``threads`` for both sides; ``corpus``: directory of compiled networks."""

    seconds: float
    threads: int
    corpus: Path | None


@dataclass(frozen=True)
class Result:
    """One row. ``value`` in ``unit`` is what ``limit`` and ``goal`` limit: at most, or at least for "x faster"."""

    row: str
    value: float
    unit: str
    limit: float
    goal: float
    loadable: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        better = self.value.__ge__ if self.unit == "x faster" else self.value.__le__
        return "goal" if better(self.goal) else "limit" if better(self.limit) else "MISSED"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def against_float(name: str, config: str, limit: float, goal: float, options: Options) -> Result:
    """int8 against onnxruntime in float32: one image, the same layers, the same number of threads."""
    runtime, surface, source = prepared(name, config, "int8", options)
    session, feed = float_session(name, options.threads)
    works = {"nvdla": lambda: runtime.run_raw([surface]), "float32": lambda: session.run(None, feed)}
    times = measure.interleaved(works, options.seconds)
    macs = networks.multiplications(networks.NETWORKS[name]())
    details = {
        "nvdla_ms": times["nvdla"] * 1e3,
        "onnxruntime_ms": times["float32"] * 1e3,
        "nvdla_gmacs": macs / times["nvdla"] / 1e9,
        "onnxruntime_gmacs": macs / times["float32"] / 1e9,
        "noise": times["nvdla"].noise,
    }
    return Result(f"{name}-{config}", times["nvdla"] / times["float32"], "x float32", limit, goal, source, details)


def against_int8(name: str, config: str, limit: float, goal: float, options: Options, busy: bool = False) -> Result:
    """int8 against onnxruntime in int8 (QDQ): one image, the same layers and number of threads; ``busy``: next to twice
    as many spinning processes as cores, with our own quiet time of the same row."""
    runtime, surface, source = prepared(name, config, "int8", options)
    session, feed = int8_session(name, options.threads)
    works = {"nvdla": lambda: runtime.run_raw([surface]), "int8": lambda: session.run(None, feed)}
    times = measure.interleaved(works, options.seconds)
    details = {}
    if busy:
        details = {"quiet_ms": times["nvdla"] * 1e3, "quiet_noise": times["nvdla"].noise}
        with measure.spinning(2 * cores()):
            loaded = measure.interleaved(works, 2 * options.seconds, least=8, settle=measure.BUSY_SETTLE)
        details["busy_to_quiet"] = loaded["nvdla"] / times["nvdla"]
        times = loaded
    details |= {"nvdla_ms": times["nvdla"] * 1e3, "int8_ms": times["int8"] * 1e3, "noise": times["nvdla"].noise}
    details["best_ratio"] = times["nvdla"].best / times["int8"].best
    row = f"{'busy' if busy else 'int8'}-{name}-{config}"
    return Result(row, times["nvdla"] / times["int8"], "x int8", limit, goal, source, details)


def in_process(name: str, config: str, precision: str, limit: float, goal: float, options: Options) -> Result:
    """One image in a process that has run before. ``limit`` and ``goal`` in milliseconds."""
    runtime, surface, source = prepared(name, config, precision, options)
    least = 3 if precision == "fp16" else 20
    times = measure.interleaved({"run": lambda: runtime.run_raw([surface])}, options.seconds, least, warm=2)
    details = {"noise": times["run"].noise}
    return Result(_named(name, config, precision), times["run"] * 1e3, "ms", limit, goal, source, details)


def batch(name: str, config: str, limit: float, goal: float, options: Options) -> Result:
    """Processor time of 64 images one at a time against that of a batch."""
    runtime, surface, source = prepared(name, config, "int8", options)
    images = [[surface]] * BATCH
    works = {"single": lambda: [runtime.run_raw(image) for image in images], "batch": lambda: runtime.run_many(images)}
    times = measure.interleaved(works, options.seconds, least=3, warm=1, clock=time.process_time)
    details = {
        "single_images_per_s": BATCH / times["single"],
        "batch_images_per_s": BATCH / times["batch"],
        "noise": times["batch"].noise,
        "best_ratio": times["single"].best / times["batch"].best,
    }
    ratio = times["single"] / times["batch"]
    return Result(f"batch-{name}-{config}", ratio, "x faster", limit, goal, source, details)


def two_callers(name: str, config: str, limit: float, goal: float, options: Options) -> Result:
    """Images per second of two runtimes, each in a thread of Python, against one that may use as many cores."""
    runtimes = [prepared(name, config, "int8", options) for _ in range(3)]
    source, images = runtimes[0][2], 4

    def some(number: int, count: int) -> None:
        runtime, surface, _ = runtimes[number]
        for _ in range(count):
            runtime.run_raw([surface])

    def both() -> None:
        threads = [threading.Thread(target=some, args=(number, images)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    times = measure.interleaved({"one": lambda: some(0, 2 * images), "two": both}, options.seconds, least=3)
    details = {
        "one_images_per_s": 2 * images / times["one"],
        "two_images_per_s": 2 * images / times["two"],
        "noise": times["two"].noise,
    }
    return Result(f"two-callers-{name}", times["one"] / times["two"], "x faster", limit, goal, source, details)


def new_process(name: str, limit: float, goal: float, options: Options) -> Result:
    """``nvdla run`` from start to end, compiled kernels at hand."""
    with tempfile.TemporaryDirectory() as folder:
        words, source = _command(name, Path(folder), options)
        installed = _installed(words, Path(folder))
        measure.process([*words[:3], "cache", "warm-up"], installed)
        times = measure.interleaved({"run": lambda: measure.process(words, installed)}, options.seconds, warm=1)
    return Result(_of("new-process", name), times["run"], "s", limit, goal, source)


def first_run(name: str, limit: float, goal: float, options: Options) -> Result:
    """``nvdla run`` with nothing compiled yet: what the first run after an installation takes."""
    with tempfile.TemporaryDirectory() as folder:
        words, source = _command(name, Path(folder), options)
        installed = _installed(words, Path(folder))
        kernels = Path(folder) / "kernels"
        seconds, _ = measure.process(words, {**installed, "NVDLA_CACHE_DIR": str(kernels)})
        files = sum(path.is_file() for path in kernels.rglob("*"))
    return Result(_of("first-run", name), seconds, "s", limit, goal, source, {"compiled_kernels": files})


def _installed(words: list[str], folder: Path) -> dict[str, str]:
    """The environment of a process that finds Python's bytecode of the toolkit, as pip leaves it; made by a run."""
    environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    measure.process(words, environment)
    return environment


# Images in a process without compiled kernels: a number of them, or until it uses compiled kernels, then LATER more.
# The last argument forbids compiled kernels. Output: wall and processor times of the images, which of them also
# prepared for the switch, the number of images before it, the processor time of the process and its children, what
# these compile.
LATER = 5
COLD = """
import json, os, resource, sys, time
import nvdla
from nvdla.emulator.execution import fusing, plan
from nvdla.kernels.jit.object_code import background
number, parts, kernels = int(sys.argv[3]), [0], {}
if int(sys.argv[5]):
    plan.Plan.takes_fallback, plan.Plan.prepare = lambda self, is_first: True, lambda self, began: None
def start(codes, start=background._start):
    kernels.update((f"{code.place}/{code.integers}", 0) for code in codes)
    start(codes)
def counted(self, until, go_on=fusing.Switch.go_on):
    waits = self.waits
    go_on(self, until)
    parts[0] += not (waits and self.waits)
background._start, fusing.Switch.go_on = start, counted
runtime = nvdla.Runtime(nvdla.load(sys.argv[1]), sys.argv[2])
image, times, works, switch = [bytes(tensor.size) for tensor in runtime.inputs], [], [], None
while len(times) < number if number else switch is None or len(times) < switch + int(sys.argv[4]):
    done, begin = parts[0], (time.perf_counter(), time.process_time())
    runtime.run_raw(image)
    times.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    works.append(parts[0] > done)
    if switch is None and runtime._state().fused:
        switch = len(times) - 1
if background._process:
    if number:
        os.kill(background._process, 9)
    os.waitpid(background._process, 0)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps([times, works, switch, sum(each.ru_utime + each.ru_stime for each in used), [*kernels]]))
"""


@dataclass(frozen=True)
class Cold:
    """Output of COLD, for one process."""

    times: list[tuple[float, float]]
    works: list[bool]
    switch: int | None
    used: float
    kernels: list[str]

    def of(self, clock: int) -> list[float]:
        """Times of the images by one clock: 0 wall, 1 processor."""
        return [pair[clock] for pair in self.times]

    def working(self, clock: int, other: Cold) -> list[float]:
        """Ratios of the images that also prepare for the switch, from the last to the first, to the median of those
        around them that do not, or of these images in another process."""
        times, others, ratios = self.of(clock), other.of(clock), []
        for at in range(FIRST, self.switch or 0):
            around = range(max(FIRST, at - AROUND), min(at + AROUND, self.switch or 0))
            alone = [times[near] for near in around if not self.works[near]]
            if self.works[at]:
                ratios.append(times[at] / median(alone if len(alone) > 4 else [others[near] for near in around]))
        return ratios[::-1]


def _cold(path: Path, config: str, images: int = 0, forbids: bool = False) -> Cold:
    """Run COLD with an empty cache directory, after a run that makes Python's bytecode next to the loadable."""
    words = [sys.executable, "-c", COLD, str(path), config, str(images), str(LATER), str(int(forbids))]
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(path.parent / "bytecode")}
    outputs = []
    for _ in range(1 if (path.parent / "bytecode").exists() else 2):
        with tempfile.TemporaryDirectory() as folder:
            outputs.append(measure.process(words, {**bytecode, "NVDLA_CACHE_DIR": folder})[1])
    return Cold(*json.loads(outputs[-1]))


def cold_start(name: str, config: str, precision: str, limit: float, goal: float, options: Options) -> Result:
    """Processor time of all processes until the compiled kernels are in use, without that of the images."""
    with tempfile.TemporaryDirectory() as folder:
        loadable, source = loadable_of(name, config, precision, options.corpus)
        path = Path(folder) / "network.loadable"
        loadable.save(path)
        cold = _cold(path, config)
    times, switch = [processor for _, processor in cold.times], cold.switch or 0
    fallback, later = median(times[1:switch] or times[:1]), median(times[-LATER:])
    details = {
        "first_ms": times[0] * 1e3,
        "fallback_ms": fallback * 1e3,
        "later_ms": later * 1e3,
        "fallback_images": switch,
    }
    value = cold.used - switch * fallback - LATER * later
    return Result(f"cold-{_named(name, config, precision)}", value, "s of processor", limit, goal, source, details)


FIRST, STARTS, AROUND, ROUNDS, SHORT = 20, 15, 20, 5, 5e-3
"""Images at the start of a process that are compared one by one, in so many short processes of either kind; images
before and after one; long processes of either kind, three times as many if images take fewer seconds than the last."""


def cold_images(name: str, config: str, limit: float, goal: float, options: Options) -> Result:
    """The slowest image of a process without kernels against the same image of one whose kernels are forbidden.

    Wall times of ROUNDS processes, in turns. A process of low priority compiles the same kernels next to both. A
    processor is up to twice as slow while another process uses the same core, often for a fifth of the images, and some
    processes have a faster clock. So the first FIRST images are compared one by one, by the lower quartiles of their
    times in STARTS processes. Of later ones, by medians,
    those that also prepare for the switch are compared with the others around them, and the images of the switch and
    after it with all later forbidden ones.
    """
    from nvdla.kernels.jit import object_code

    with tempfile.TemporaryDirectory() as folder:
        loadable, source = loadable_of(name, config, "int8", options.corpus)
        path = Path(folder) / "network.loadable"
        loadable.save(path)
        cold, forbidden = [], []

        def without_kernels(images: int) -> Cold:
            """Run images with kernels forbidden, next to a process that compiles the same ones."""
            child = [sys.executable, "-c", object_code.CHILD, json.dumps(sys.path), str(os.getpid()), *cold[0].kernels]
            with tempfile.TemporaryDirectory() as cache:
                environment = {**os.environ, "NVDLA_CACHE_DIR": cache}
                with subprocess.Popen(child, env=environment, stdin=subprocess.DEVNULL) as compiling:
                    times = _cold(path, config, images, forbids=True)
                    compiling.kill()
            return times

        rounds = ROUNDS
        while len(cold) < rounds:
            cold.append(_cold(path, config))
            forbidden.append(without_kernels(max(cold[-1].switch or 0, 4 * FIRST)))
            rounds = ROUNDS * (3 if median(forbidden[0].of(0)) < SHORT else 1)
        starts = [(_cold(path, config, FIRST), without_kernels(FIRST)) for _ in range(STARTS)]
    ratios = [_slowest(cold, forbidden, starts, clock) for clock in (0, 1)]
    details = {
        "first_ms": median(each.of(0)[0] for each in forbidden) * 1e3,
        **ratios[0],
        **{f"processor_{name}": value for name, value in ratios[1].items()},
        "fallback_images": median(each.switch or 0 for each in cold),
    }
    value = max(ratios[0][name] for name in ("starts", "working", "switch"))
    return Result(f"cold-images-{name}-{config}", value, "x fallback", limit, goal, source, details)


def _largest(runs: Sequence[Run], ratios: Callable[[Sequence[Run]], list[float]]) -> float:
    """The largest of the ratios at all positions. The maximum of noisy numbers is too large, so half of the runs tell
    the position, and the others the ratio there; both ways, and the mean."""
    first, second = ratios(runs[::2]), ratios(runs[1::2])
    return (second[int(np.argmax(first[: len(second)]))] + first[int(np.argmax(second[: len(first)]))]) / 2


def _at_start(clock: int, starts: Sequence[tuple[Cold, Cold]]) -> list[float]:
    """Ratios of the first images, one by one."""
    pairs = [zip(*(each.of(clock) for each in runs), strict=True) for runs in zip(*starts, strict=True)]
    mine, others = ([quantiles(times)[0] for times in images] for images in pairs)
    return [one / other for one, other in zip(mine, others, strict=True)]


def _at_work(ratios: Sequence[list[float]]) -> list[float]:
    """Medians of the ratios of images that also prepare, one by one."""
    return [median(each[at] for each in ratios) for at in range(min(map(len, ratios)))]


def _slowest(cold: list[Cold], forbidden: list[Cold], short: list[tuple[Cold, Cold]], clock: int) -> dict[str, float]:
    """The largest ratios among the first images, those that prepare, and those from the switch on; the share of slow
    images of either kind, which is the noise of the machine."""
    steady = median(seconds for each in forbidden for seconds in each.of(clock)[FIRST:])
    ratios = [each.working(clock, other) for each, other in zip(cold, forbidden, strict=True)]
    switch = [median(each.of(clock)[(each.switch or 0) + at] for each in cold) for at in range(LATER)]
    later = [[seconds for each in runs for seconds in each.of(clock)[FIRST:]] for runs in (cold, forbidden)]
    slow = [sum(seconds > 1.2 * steady for seconds in times) / len(times) for times in later]
    return {
        "fallback_ms": steady * 1e3,
        "starts": _largest(short, partial(_at_start, clock)),
        "working": _largest(ratios, _at_work) if all(ratios) else 0.0,
        "switch": max(switch) / steady,
        "slow_share": slow[0],
        "slow_share_forbidden": slow[1],
    }


# Peak resident memory of a process before and after it loads and runs; the inputs are ones.
MEMORY = """
import sys
sys.path.insert(0, sys.argv[1])
import measure, numba, numpy as np, nvdla, nvdla.runtime
warm = nvdla.Runtime(nvdla.load(sys.argv[4]))
for _ in range(3):
    warm.run(np.ones(warm.inputs[0].shape, warm.inputs[0].dtype))
del warm
before = measure.peak_memory()
runtime = nvdla.Runtime(nvdla.load(sys.argv[2]), sys.argv[3])
surface = bytes(runtime.inputs[0].size)
for _ in range(3):
    runtime.run_raw([surface])
surfaces = sum(memory.size for memory in runtime.loadable.memories if not memory.contents)
print(before, measure.peak_memory(), surfaces)
"""


def memory(name: str, config: str, limit: float, goal: float, options: Options) -> Result:
    """Peak memory that a network adds to a process that has run a small one, against loadable and surfaces."""
    with tempfile.TemporaryDirectory() as folder:
        loadable, source = loadable_of(name, config, "int8", options.corpus)
        path = Path(folder) / "net.loadable"
        loadable.save(path)
        words = (str(Path(__file__).parent), str(path), config, str(SAMPLES / "lenet.loadable"))
        before, peak, surfaces = map(int, measure.python(MEMORY, *words).split())
        size = path.stat().st_size
    details = {
        "loadable_mib": size / 2**20,
        "surfaces_mib": surfaces / 2**20,
        "added_mib": (peak - before) / 2**20,
        "process_mib": peak / 2**20,
        "process_ratio": peak / (size + surfaces),
    }
    ratio = (peak - before) / (size + surfaces)
    return Result(f"memory-{name}", ratio, "x loadable + surfaces", limit, goal, source, details)


# A command, then the peak resident memory of its process.
COMPILE = """
import sys
sys.path.insert(0, sys.argv[1])
import measure
from nvdla.cli.main import main
code = main(sys.argv[2:])
print(measure.peak_memory())
sys.exit(code)
"""


def compile_time(name: str, limit: float, goal: float, options: Options) -> Result:
    """``nvdla compile -O 1`` of an ONNX file for nv_large with random calibration images, from start to end."""
    random = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as folder:
        model, images, target = (Path(folder) / file for file in ("net.onnx", "images.npz", "net.nvpkg"))
        model.write_bytes(MODELS[name][1]())
        tensor, shape, samples = MODELS[name][2]
        values = random.standard_normal((samples, *shape[1:]), np.float32)
        np.savez(images, **{tensor: values})
        words = ["compile", str(model), "--config", "nv_large", "-O", "1", "--calibrate", str(images)]
        words += ["--shape", f"{tensor}={','.join(map(str, shape))}", "--output", str(target)]
        seconds, printed = measure.process([sys.executable, "-c", COMPILE, str(Path(__file__).parent), *words])
    details = {"images": samples, "peak_mib": int(printed.split()[-1]) / 2**20}
    return Result(f"compile-{name}", seconds, "s", limit, goal, MODELS[name][0], details)


def _resnet50() -> bytes:
    from onnx_form import onnx_model

    return onnx_model(networks.NETWORKS["resnet50"]())


def _swin_t() -> bytes:
    import torch
    import torchvision

    torch.manual_seed(2)
    module, stream = torchvision.models.swin_t().eval(), io.BytesIO()
    torch.onnx.export(module, (torch.zeros(1, 3, 224, 224),), stream, input_names=["x"], dynamo=False)
    return stream.getvalue()


def _text_recognizer() -> bytes:
    import rapidocr_onnxruntime

    return next(Path(rapidocr_onnxruntime.__file__).parent.glob("models/*_rec_infer.onnx")).read_bytes()


MODELS = {
    "resnet50": ("networks.py", _resnet50, ("data", (1, 3, 224, 224), 100)),
    "swin_t": ("torchvision", _swin_t, ("x", (1, 3, 224, 224), 8)),
    "text-recognizer": ("rapidocr_onnxruntime", _text_recognizer, ("x", (1, 3, 48, 320), 20)),
}
"""Models by name: the package or file they come from, a function that returns the ONNX model, the input's name and
shape, and the number of calibration images."""


def _command(name: str, folder: Path, options: Options) -> tuple[list[str], str]:
    """``nvdla run`` of the sample LeNet on a digit, or of another int8 network; and where the loadable is from."""
    if name == "lenet":
        files, source = (SAMPLES / "lenet.loadable", SAMPLES / "digit3.pgm"), "samples/lenet.loadable"
    else:
        runtime, surface, source = prepared(name, "nv_large", "int8", options)
        files = (folder / "network.loadable", folder / "input.bin")
        runtime.loadable.save(files[0])
        files[1].write_bytes(surface)
    words = ["run", str(files[0]), "--input", str(files[1]), "--quiet"]
    return [sys.executable, "-m", "nvdla", *words], source


def _of(row: str, name: str) -> str:
    return row if name == "lenet" else f"{row}-{name}"


def _named(name: str, config: str, precision: str) -> str:
    return f"{name}-{config}" if precision == "int8" else f"{name}-{precision}"


def prepared(name: str, config: str, precision: str, options: Options) -> tuple[nvdla.Runtime, bytes, str]:
    """A runtime that only uses compiled kernels, a raw input, and where the loadable is from."""
    fallback_work.end()
    loadable, source = loadable_of(name, config, precision, options.corpus)
    runtime = nvdla.Runtime(loadable, config, threads=options.threads)
    tensor = runtime.inputs[0]
    values = np.random.default_rng(2).integers(-64, 64, tensor.shape)
    scaled = values / 32 if precision == "fp16" else values
    return runtime, runtime.pack(0, scaled.astype(tensor.dtype)), source


@cache
def loadable_of(name: str, config: str, precision: str, corpus: Path | None) -> tuple[Any, str]:
    """NVIDIA's compiler's loadable where the corpus has it, a sample, or one of ``nvdla.compiler.builder``; and where
    it is from."""
    path = Path(name) / f"{config}-{precision}-fast-math.nvdla"
    if corpus is not None and (corpus / path).is_file():
        return nvdla.load(corpus / path), "NVIDIA's compiler"
    if name not in networks.NETWORKS:
        return nvdla.load(SAMPLES / f"{name}.loadable"), f"samples/{name}.loadable"
    return networks.built(networks.NETWORKS[name](), config, precision).loadable, "nvdla.compiler.builder"


@cache
def float_session(name: str, threads: int) -> tuple[Any, dict[str, np.ndarray]]:
    """onnxruntime with the network in float32, and an input."""
    from onnx_form import onnx_model

    return _session(onnx_model, name, threads)


@cache
def int8_session(name: str, threads: int) -> tuple[Any, dict[str, np.ndarray]]:
    """The same in int8."""
    from onnx_form import int8_model

    return _session(int8_model, name, threads)


def _session(form: Callable[[Any], bytes], name: str, threads: int) -> tuple[Any, dict[str, np.ndarray]]:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    network = networks.NETWORKS[name]()
    session = onnxruntime.InferenceSession(form(network), settings, providers=["CPUExecutionProvider"])
    image = np.random.default_rng(2).standard_normal((1, *network.inputs[0].shape), np.float32)
    return session, {network.inputs[0].name: image}


INT8_LIMITS = {"lenet": (1.5, 1), "squeezenet": (1.2, 0.8)}
"""For networks whose time is not in their products; 1 and 0.7 for the others."""
BATCH_GOALS = {"lenet": 1.3, "alexnet": 1.3}
"""For networks with small runs, or with weights that a batch reads once. 1 for the others: a single image keeps the
processor's dot products busy for 70 to 90 % of the time, so no batch can be 1.4 times as fast."""
ROWS: dict[str, Callable[[Options], Result]] = {
    "resnet50-nv_large": partial(against_float, "resnet50", "nv_large", 3, 1),
    "resnet50-nv_small": partial(against_float, "resnet50", "nv_small", 4, 1.5),
    **{
        f"{name}-{config}": partial(against_float, name, config, 3, 1)
        for name in ("resnet18", "googlenet", "squeezenet", "alexnet")
        for config in ("nv_large", "nv_small")
    },
    **{
        f"int8-{name}-{config}": partial(against_int8, name, config, *INT8_LIMITS.get(name, (1, 0.7)))
        for name in ("resnet50", "resnet18", "googlenet", "squeezenet", "alexnet", "lenet")
        for config in ("nv_large", "nv_small")
    },
    **{
        f"busy-{name}-{config}": partial(against_int8, name, config, 1.5, 1, busy=True)
        for name in ("resnet50", "resnet18", "squeezenet", "lenet")
        for config in ("nv_large", "nv_small")
    },
    "lenet-nv_small": partial(in_process, "lenet", "nv_small", "int8", 3, 1),
    "lenet-nv_large": partial(in_process, "lenet", "nv_large", "int8", 3, 1),
    **{
        f"batch-{name}-{config}": partial(batch, name, config, 0.97, BATCH_GOALS.get(name, 1))
        for name in ("lenet", "alexnet", "squeezenet", "googlenet", "resnet18", "resnet50")
        for config in ("nv_large", "nv_small")
    },
    "two-callers-resnet50": partial(two_callers, "resnet50", "nv_large", 0.95, 1.2),
    "lenet-fp16": partial(in_process, "lenet", "nv_full", "fp16", 6, 2),
    "resnet18-fp16": partial(in_process, "resnet18", "nv_full", "fp16", 1000, 400),
    "new-process": partial(new_process, "lenet", 1.0, 0.5),
    "new-process-resnet50": partial(new_process, "resnet50", 0.7, 0.5),
    "first-run": partial(first_run, "lenet", 20, 3),
    "first-run-resnet50": partial(first_run, "resnet50", 4, 3),
    "cold-resnet50-nv_large": partial(cold_start, "resnet50", "nv_large", "int8", 4, 3),
    "cold-lenet-fp16": partial(cold_start, "lenet", "nv_full", "fp16", 5, 4),
    **{
        f"cold-images-{name}-{config}": partial(cold_images, name, config, 1.2, 1.1)
        for name, config in (
            ("lenet", "nv_small"),
            ("color_digits", "nv_small"),
            ("squeezenet", "nv_large"),
            ("resnet50", "nv_large"),
        )
    },
    "memory-resnet50": partial(memory, "resnet50", "nv_large", 1.8, 1.5),
    **{
        f"compile-{name}": partial(compile_time, name, limit, limit / 2)
        for name, limit in (("resnet50", 20), ("swin_t", 60), ("text-recognizer", 60))
        if importlib.util.find_spec(MODELS[name][0].removesuffix(".py"))
    },
}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
