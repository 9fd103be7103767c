"""A loadable as a model library: the C code compiles, its registry hands out the network, and it runs bit-exactly."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.c_runner import C, Served
from support.plain_loadable import plain_loadable
from support.tvm_corpus import FORMATS

import nvdla
from nvdla.emulator.memory.address_space import Space
from nvdla.errors import FormatError
from nvdla.interop.containers import registry
from nvdla.interop.containers.tvm import mlf, mlf_create, mlf_verify
from nvdla.interop.containers.tvm.crt import FuncRegistry
from nvdla.loadable.model import Loadable, SubmitEntry
from nvdla.registers import record
from nvdla.registers.printers import printer
from nvdla.registers.recording import Options as ExportOptions
from nvdla.registers.recording import export

SAMPLES = Path(__file__).resolve().parents[4] / "samples"
LOADABLES = FORMATS.parent / "loadables"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]


def opened(data: bytes) -> mlf.ModelLibrary:
    return mlf.read(memoryview(data))


def test_a_new_library_verifies_and_opens_again_as_the_same_loadable():
    data = mlf_create.pack([("My net!", plain_loadable())], when=0)
    library = opened(data)
    (module,) = library.modules
    assert [f for f in mlf_verify.verify(library, strict=True) if f.severity != registry.Severity.NOTE] == []
    assert mlf_create.unpack(library, module) == plain_loadable()
    (main,) = module.main
    assert (module.name, main.constants, main.workspace, main.io) == ("My_net", 40, 100, 32)
    assert main.inputs == {"in": (16, "uint8")}
    assert [f.name for f in module.operators] == ["tvmgen_My_net_submit_0", "tvmgen_My_net_submit_5"]


def test_equal_inputs_give_equal_libraries():
    one, two = (mlf_create.pack([("a", plain_loadable())], when=1_700_000_000) for _ in range(2))
    assert one == two


def test_two_networks_need_two_names():
    with pytest.raises(FormatError, match="must be unique"):
        mlf_create.pack([("a b", plain_loadable()), ("a_b", plain_loadable())])
    library = opened(mlf_create.pack([("a", plain_loadable()), ("b", plain_loadable())]))
    assert [m.name for m in library.modules] == ["a", "b"]
    assert [f for f in mlf_verify.verify(library) if f.severity == registry.Severity.ERROR] == []


def test_a_tensor_named_like_a_parameter_gets_a_name_of_its_own():
    library = opened(mlf_create.pack([("a", plain_loadable("weights"))]))
    assert [f for f in mlf_verify.verify(library) if f.severity == registry.Severity.ERROR] == []


def test_a_library_of_something_else_is_not_unpacked(formats):
    library = mlf.read(memoryview((formats / "mlf" / "exporter_mlf7_dense_graph_c.tar").read_bytes()))
    with pytest.raises(FormatError, match="must be made from a loadable"):
        mlf_create.unpack(library, library.modules[0])


@pytest.mark.parametrize(("change", "word"), [
    (lambda s: s["loadable"]["memories"][0].pop("size"), "'size': must be given"),
    (lambda s: s["loadable"]["memories"][0].update(size="big"), "must be int, got str"),
    (lambda s: s["loadable"]["memories"][0].update(offsets=[True]), "must be int, got bool"),
    (lambda s: s["loadable"]["blobs"][0].update(name="none"), "blob 'none': must be in"),
    (lambda s: s.update(version=2), "schedule version: must be 1, got 2"),
])  # fmt: skip
def test_a_damaged_schedule_is_refused(change, word):
    library = opened(mlf_create.pack([("a", plain_loadable())]))
    path = "executor-config/nvdla/a.json"
    schedule = json.loads(bytes(library.files[path].data))
    change(schedule)
    library = opened(library.repack({path: json.dumps(schedule).encode()}))
    with pytest.raises(FormatError, match=word):
        mlf_create.unpack(library, library.modules[0])


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]  # fmt: skip


class Task(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint32), ("interface", ctypes.c_uint32), ("instance", ctypes.c_int32),
                ("addresses", ctypes.c_void_p), ("num_addresses", ctypes.c_uint32)]  # fmt: skip


class Memory(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint32), ("domain", ctypes.c_uint32), ("size", ctypes.c_uint64),
                ("alignment", ctypes.c_uint64)]  # fmt: skip


class Registry(ctypes.Structure):
    _fields_ = [("names", ctypes.POINTER(ctypes.c_char)), ("functions", ctypes.POINTER(ctypes.c_void_p))]


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(Memory))
RELEASE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint32)
MOVE = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64
)
SUBMIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(Task))
PACKED = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


class PlatformTable(ctypes.Structure):
    _fields_ = [("context", ctypes.c_void_p), ("allocate", ALLOCATE), ("release", RELEASE), ("write", MOVE),
                ("read", MOVE), ("submit", SUBMIT)]  # fmt: skip


class Platform:
    """The platform in Python: memories are bytearrays, ``on_submit`` does the work. ``refuse`` is the id of a memory
    that cannot be had."""

    def __init__(self, on_submit=lambda memories, task: None, refuse: int | None = None) -> None:
        self.memories: dict[int, bytearray] = {}
        self.on_submit, self.refuse, self.tasks = on_submit, refuse, []
        self.table = PlatformTable(
            None, ALLOCATE(self.allocate), RELEASE(self.release), MOVE(self.write), MOVE(self.read), SUBMIT(self.submit)
        )

    def allocate(self, _, memory) -> int:
        if memory[0].id == self.refuse:
            return 0x503
        assert memory[0].id not in self.memories
        self.memories[memory[0].id] = bytearray(memory[0].size)
        return 0

    def release(self, _, memory) -> int:
        del self.memories[memory]
        return 0

    def write(self, _, memory, offset, data, size) -> int:
        assert offset + size <= len(self.memories[memory])
        self.memories[memory][offset : offset + size] = ctypes.string_at(data, size)
        return 0

    def read(self, _, memory, offset, data, size) -> int:
        assert offset + size <= len(self.memories[memory])
        ctypes.memmove(data, bytes(self.memories[memory][offset : offset + size]), size)
        return 0

    def submit(self, _, task) -> int:
        self.tasks.append(task[0].id)
        self.on_submit(self.memories, task[0])
        return 0


class Compiled:
    """A library's C code, compiled and loaded; its functions are found through its registry as the CRT finds them."""

    def __init__(self, data: bytes, folder: Path) -> None:
        compiler = shutil.which("gcc")
        if compiler is None:
            pytest.skip("gcc is not installed")
        registry.open(data).extract(folder)
        self.container = registry.open(folder)
        target = folder / "network.so"
        done = subprocess.run(
            [
                compiler,
                *STRICT,
                "-fPIC",
                "-shared",
                "-I",
                folder / "codegen/host/include",
                *sorted((folder / "codegen/host/src").glob("*.c")),
                "-o",
                target,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        self.code = ctypes.CDLL(str(target))
        entry = self.code.TVMSystemLibEntryPoint
        entry.restype = ctypes.POINTER(ctypes.POINTER(Registry))
        self.table = entry()[0][0]
        self.registry = FuncRegistry.parse(self.text())

    def text(self) -> bytes:
        """The names up to the NUL that stands alone."""
        names, length = self.table.names, 2
        while names[length] != b"\0" or names[length - 1] != b"\0":
            length += 1
        return names[: length + 1]

    def call(self, name: str, *arrays: np.ndarray) -> int:
        function = PACKED(self.table.functions[self.registry.lookup(name)])
        shapes = [(ctypes.c_int64 * max(a.ndim, 1))(*a.shape) for a in arrays]
        tensors = [
            DLTensor(a.ctypes.data, (1, 0), a.ndim, 1, 8 * a.itemsize, 1, shape, None, 0)
            for a, shape in zip(arrays, shapes, strict=True)
        ]
        values = (ctypes.c_uint64 * max(len(tensors), 1))(*map(ctypes.addressof, tensors))
        codes = (ctypes.c_int * max(len(tensors), 1))(*[7] * len(tensors))
        result = (ctypes.c_uint64(), ctypes.c_int())
        return function(values, codes, len(tensors), ctypes.byref(result[0]), ctypes.byref(result[1]), None)

    def parameters(self) -> list[np.ndarray]:
        return [np.frombuffer(p.as_bytes(), np.uint8).copy() for p in self.container.parameters()]

    def use(self, name: str, platform: Platform) -> None:
        getattr(self.code, f"tvmgen_{name}_set_platform")(ctypes.byref(platform.table))


@pytest.fixture
def compiled(tmp_path) -> Compiled:
    return Compiled(mlf_create.pack([("net", plain_loadable())]), tmp_path)


def test_the_registry_hands_out_the_entry_points(compiled):
    assert compiled.registry.count_bytes == 2
    assert compiled.registry.names == [
        "tvmgen_net_run",
        "tvmgen_net_load",
        "tvmgen_net_submit_0",
        "tvmgen_net_submit_5",
        "tvmgen_net_unload",
        "__tvm_main__",
    ]


def test_the_registry_of_0_8_counts_in_one_byte(tmp_path):
    assert Compiled(mlf_create.pack([("net", plain_loadable())], count_bytes=1), tmp_path).registry.count_bytes == 1


def test_loading_allocates_and_fills_and_unloading_gives_back(compiled):
    platform = Platform()
    compiled.use("net", platform)
    assert compiled.call("tvmgen_net_load", *compiled.parameters()) == 0
    assert {key: len(value) for key, value in platform.memories.items()} == {0: 64, 1: 16, 2: 100}
    assert bytes(platform.memories[0]) == bytes(range(32)) + b"\x07" * 8 + bytes(24)
    assert compiled.call("tvmgen_net_unload") == 0
    assert platform.memories == {}


def test_the_dependency_counts_are_loaded_again_before_every_submit(compiled):
    platform = Platform()
    compiled.use("net", platform)
    compiled.call("tvmgen_net_load", *(parameters := compiled.parameters()))
    platform.memories[0][32:40] = bytes(8)
    platform.memories[2][0] = 1
    assert compiled.call("tvmgen_net_submit_5") == 0
    assert bytes(platform.memories[0][32:40]) == b"\x07" * 8
    assert platform.memories[2][0] == 1
    assert len(parameters) == 2


def test_running_copies_inputs_in_and_outputs_out(compiled):
    platform = Platform()
    compiled.use("net", platform)
    image, result = np.arange(16, dtype=np.uint8), np.zeros(16, np.uint8)
    for name in ("tvmgen_net_run", "__tvm_main__"):
        result[:] = 0
        assert compiled.call(name, image, *compiled.parameters(), result) == 0
        assert np.array_equal(result, image)


def test_wrong_calls_are_answered_with_the_runtimes_error_codes(compiled):
    image = np.zeros(16, np.uint8)
    assert compiled.call("tvmgen_net_load", *compiled.parameters()) == 0x500  # no platform yet
    platform = Platform()
    compiled.use("net", platform)
    assert compiled.call("tvmgen_net_submit_0") == 0x500  # not loaded
    assert compiled.call("tvmgen_net_run", image) == 0x800
    assert compiled.call("tvmgen_net_run", image[:15], *compiled.parameters(), image) == 0x803
    assert compiled.call("tvmgen_net_unload", image) == 0x800


def test_a_failed_allocation_leaves_no_memory_allocated(compiled):
    platform = Platform(refuse=2)
    compiled.use("net", platform)
    assert compiled.call("tvmgen_net_load", *compiled.parameters()) == 0x503
    assert platform.memories == {}


def test_a_registry_too_long_for_a_literal_compiles(tmp_path):
    many = tuple(SubmitEntry(index, ()) for index in range(300))
    loadable = Loadable(
        memories=plain_loadable().memories, blobs=plain_loadable().blobs, tensors=plain_loadable().tensors, submits=many
    )
    code = Compiled(mlf_create.pack([("net", loadable)]), tmp_path)
    assert len(code.registry.names) == 304
    code.use("net", Platform())
    assert code.call("tvmgen_net_load", *code.parameters()) == 0
    assert code.call("tvmgen_net_submit_299") == 0


CASES = [
    "conv1x1/nv_small-int8-fast-math",
    "concat2/nv_full-fp16-fast-math-b4",
    "lenet/nv_small-int8-fast-math",
    "multi_in/nv_full-fp16-fast-math",
    "multi_out/nv_small-int8-fast-math",
    "ip_softmax/nv_full-fp16-fast-math",
]


@pytest.fixture(params=CASES)
def case(request) -> dict:
    path = LOADABLES / "manifest.json"
    if not path.exists():
        pytest.skip("the corpus of real files is not here")
    return next(entry for entry in json.loads(path.read_text())["cases"] if entry["id"] == request.param)


def test_a_real_network_runs_through_the_c_registry_bit_exactly(tmp_path, case):
    """The C code loads, binds and submits; the platform's accelerator is the emulator; the output is the golden one."""
    loadable = nvdla.load(LOADABLES / case["path"])
    data = mlf_create.pack([("net", loadable)])
    assert mlf_create.unpack(opened(data), opened(data).modules[0]) == loadable
    code = Compiled(data, tmp_path)
    assert [f for f in code.container.verify(strict=True) if f.severity == registry.Severity.ERROR] == []
    runtime = nvdla.Runtime(loadable)

    def accelerator(memories, task):
        """The last task of the network stands for all: the emulator runs whole networks."""
        filled = {memory.id: memory for memory in loadable.memories if memory.flags & 2}
        for memory_id, memory in filled.items():
            for offset, blob in loadable.contents(memory):
                assert memories[memory_id][offset : offset + len(blob.data)] == blob.data
        if task.id != loadable.submit_order[-1].task_ids[-1]:
            return
        outputs = runtime.run_raw([bytes(memories[memory.id]) for memory in loadable.inputs])
        for memory, output in zip(loadable.outputs, outputs, strict=True):
            memories[memory.id][:] = output

    platform = Platform(accelerator)
    code.use("net", platform)
    inputs = [np.fromfile(LOADABLES / described["file"], np.uint8) for described in case["inputs"]]
    outputs = [np.zeros(described["size"], np.uint8) for described in case["outputs"]]
    assert code.call("tvmgen_net_run", *inputs, *code.parameters(), *outputs) == 0
    assert platform.tasks == [task for entry in loadable.submit_order for task in entry.task_ids]
    for described, output in zip(case["outputs"], outputs, strict=True):
        assert output.tobytes() == (LOADABLES / described["file"]).read_bytes()


@pytest.mark.parametrize("tool", ["make", "cmake"])
def test_a_library_is_built_as_it_is_extracted(tmp_path, tool):
    """By its Makefile and its CMakeLists.txt, without warnings; the archive has every entry point."""
    if not shutil.which(tool) or not shutil.which("gcc"):
        pytest.skip(f"{tool} or gcc is not installed")
    registry.open(mlf_create.pack([("net", plain_loadable())])).extract(tmp_path)
    host = tmp_path / "codegen" / "host"
    flags = " ".join(STRICT)
    lines = {"make": [["make", f"CFLAGS={flags}"]], "cmake": [["cmake", f"-DCMAKE_C_FLAGS={flags}", "-B", "."]]}
    for command in lines[tool] + ([["cmake", "--build", "."]] if tool == "cmake" else []):
        done = subprocess.run(command, cwd=host, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    symbols = subprocess.run(["nm", "libnvdla_network.a"], cwd=host, capture_output=True, text=True, check=True)
    for name in ("TVMSystemLibEntryPoint", "tvmgen_net_run", "tvmgen_net_load", "tvmgen_net_unload"):
        assert f" T {name}\n" in symbols.stdout


def test_the_configuration_of_the_runtime_has_the_numbers_of_the_networks(tmp_path):
    """The runtime's limits are what the networks need: the compiler compares them with the tables."""
    library = opened(mlf_create.pack([("net", plain_loadable())]))
    text = bytes(library.files["codegen/host/include/crt_config.h"].data).decode()
    numbers = {
        line.split()[1]: int(line.split()[2]) for line in text.splitlines() if line.count(" ") == 2 and "TVM" in line
    }
    graph = mlf.read_graph(library.files["executor-config/graph/net.graph"].data, "graph")
    assert numbers["TVM_CRT_MAX_ARGS"] == len(graph.entries)
    assert numbers["TVM_CRT_MAX_NDIM"] == max(len(entry.shape) for entry in graph.entries)
    assert numbers["TVM_CRT_MAX_STRLEN_FUNCTION_NAME"] == len("tvmgen_net_submit_0") + 1
    assert numbers["TVM_CRT_MAX_STRLEN_PARAM_NAME"] == max(map(len, graph.argument_names())) + 1
    assert numbers["TVM_CRT_MAX_REGISTERED_MODULES"] == 1


MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "nvdla_registers.h"
#include "nvdla_remote.h"
#include "network.h"

int TVMInitializeRuntime(void);
int TVMPlatformTimerStart(void);
int TVMPlatformTimerStop(double* seconds);
int tvmgen_network_run(TVMValue* args, int* codes, int count, TVMValue* value, int* code, void* handle);
void tvmgen_network_set_platform(const nvdla_platform_t* platform);
extern const nvdla_place_t tvmgen_network_places[];
extern const uint32_t tvmgen_network_num_places, tvmgen_network_last_task;

static int64_t sizes[] = {SIZES};
enum { COUNT = sizeof sizes / sizeof *sizes };

/* MAIN socket dram arguments result: inputs, parameters and room for the output come from the file `arguments`. */
int main(int count, char **words) {
    static nvdla_remote remote;
    static nvdla_device device;
    static nvdla_registers_t registers;
    static nvdla_platform_t platform;
    static DLTensor tensors[COUNT];
    static TVMValue values[COUNT];
    static int codes[COUNT];
    double seconds = -1;
    int i, status = TVMInitializeRuntime();
    FILE *file;
    if (status != 0 || count != 5 || nvdla_remote_open(&remote, words[1]) != 0) {
        return 2;
    }
    device.context = &remote;
    device.base[0] = NETWORK_DRAM_BASE;
    device.memory[0] = nvdla_remote_map(words[2], NETWORK_DRAM_SIZE);
    registers.device = &device;
    registers.program = &network;
    registers.places = tvmgen_network_places;
    registers.num_places = tvmgen_network_num_places;
    registers.last_task = tvmgen_network_last_task;
    nvdla_registers_platform(&platform, &registers);
    tvmgen_network_set_platform(&platform);
    file = fopen(words[3], "rb");
    for (i = 0; i < COUNT; i++) {
        tensors[i].data = malloc((size_t)sizes[i]);
        tensors[i].ndim = 1;
        tensors[i].shape = &sizes[i];
        tensors[i].dtype.bits = 8;
        tensors[i].dtype.lanes = 1;
        values[i].v_handle = &tensors[i];
        codes[i] = 7;
        if (fread(tensors[i].data, 1, (size_t)sizes[i], file) != (size_t)sizes[i]) {
            return 2;
        }
    }
    fclose(file);
    TVMPlatformTimerStart();
    status = tvmgen_network_run(values, codes, COUNT, NULL, NULL, NULL);
    TVMPlatformTimerStop(&seconds);
    file = fopen(words[4], "wb");
    fwrite(tensors[COUNT - 1].data, 1, (size_t)sizes[COUNT - 1], file);
    fclose(file);
    nvdla_remote_close(&remote);
    return status != 0 ? 1 : seconds < 0 ? 3 : 0;
}
"""
PROCESSORS = {
    "gcc": ("gcc", ()),
    "riscv64": ("riscv64-linux-gnu-gcc", ("qemu-riscv64", "-L", "/usr/riscv64-linux-gnu")),
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_library_runs_on_the_register_server(processor, tmp_path):
    """The library, built by its Makefile, with the platform for register programs, computes the output of LeNet."""
    compiler, before = PROCESSORS[processor]
    if not shutil.which(compiler) or not shutil.which("make") or (before and not shutil.which(before[0])):
        pytest.skip(f"{compiler}, make or {before[:1]} is not installed")
    loadable = nvdla.load(SAMPLES / "lenet.loadable")
    runtime = nvdla.Runtime(loadable)
    images = runtime.surfaces(SAMPLES / "digit7.pgm")
    recording = record(nvdla.Runtime(loadable), name="network")
    program = recording.register_program
    printer("c").write(export(recording, tmp_path / "program", program.bases, ExportOptions()))
    container = registry.open(mlf_create.pack([("network", loadable)]))
    container.extract(tmp_path)
    host = tmp_path / "codegen" / "host"
    subprocess.run(
        ["make", f"CC={compiler}", f"AR={compiler.replace('gcc', 'ar')}"], cwd=host, check=True, capture_output=True
    )
    parameters = [bytes(each.as_bytes()) for each in container.parameters()]
    arguments = [*images, *parameters, bytes(runtime.outputs[0].size)]
    (tmp_path / "arguments").write_bytes(b"".join(arguments))
    (tmp_path / "main.c").write_text(MAIN.replace("SIZES", ", ".join(str(len(each)) for each in arguments)))
    sources = [tmp_path / "main.c", *(host / "platform").glob("*.c"), C / "nvdla_remote.c"]
    sources += [tmp_path / "program" / name for name in ("network.c", "nvdla_runner.c", "nvdla_cpu.c")]
    includes = [f"-I{path}" for path in (host / "include", host / "platform", tmp_path / "program", C)]
    command = [
        compiler,
        *STRICT,
        '-DNVDLA_PORT_FILE="nvdla_remote.h"',
        *includes,
        *sources,
        host / "libnvdla_network.a",
    ]
    built = subprocess.run([*command, "-o", tmp_path / "main"], capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    served = Served(tmp_path, program)
    served.server.space.view(Space.DRAM, program.bases[Space.DRAM], program.sizes[Space.DRAM])[:] = 0xA5
    code, error = served.execute(
        [*before, tmp_path / "main", "SOCKET", served.paths[Space.DRAM], tmp_path / "arguments", tmp_path / "result"]
    )
    assert (code, error) == (0, "")
    assert (tmp_path / "result").read_bytes() == bytes(runtime.run_raw(images)[0])
