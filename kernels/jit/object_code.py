"""Machine code of the kernels that take integers only, loaded without numba.

Recorded kernels (:mod:`nvdla.kernels.jit.recorded_calls`) and the functions of the thread pool take integers. Compiled
code and ctypes call them by address. numba compiles them to object files. Where an object file can be linked in advance
(:func:`nvdla.kernels.jit.linked_code.image_of`), a copy to memory makes it executable in 0.2 ms; else LLVM's loader
does, whose import takes 30 ms. The import of numba and its first load of a cached kernel would take half a second.

A file needs nothing from numba (:data:`RUNTIME`). Its name contains a digest of its inputs, and its first bytes are a
checksum, as in :mod:`nvdla.kernels.jit.kernel_cache`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import json
import mmap
import os
import platform
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nvdla.errors import ConfigError
from nvdla.kernels.jit.cache_folder import DIGEST_BYTES, cache_folder, cache_folders, source_digest, write_whole
from nvdla.kernels.jit.kernel_times import kernel_times
from nvdla.kernels.jit.processor import CPUINFO, cpuinfo, dot_instructions

if TYPE_CHECKING:
    from nvdla.kernels.jit.compilation import Kernel

try:
    import fcntl
except ImportError:  # Windows: no compilation in the background
    fcntl = None  # type: ignore[assignment]

Image = tuple[dict[str, Any], bytes]
"""The header of an object file, and the code after it."""
MAGIC = b"NVDLA object 2\n"
HARMLESS = ("NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR")
"""Settings of numba that do not change machine code."""
MOST_SETTINGS = 1 << 20
"""Bytes of numba's own settings file that count."""
ERROR = "a kernel's index is out of range"
PACKAGE = "nvdla.kernels."
WORD = struct.Struct("<Q")


class ObjectCode:
    """Machine code of a function of integers: a kernel's module and name ("pdp:pool_extreme.recorded"). ``seen``:
    :meth:`is_cached` has returned True."""

    def __init__(self, place: str, integers: int) -> None:
        self.place, self.integers = place, integers
        self._address = 0
        self.seen = False
        self._engine: Any = None
        self._data: bytes | None = None
        self._image: Image | None = None

    @property
    def address(self) -> int:
        """Address of the function: result and error (addresses), then the integers. It returns 0, or an error."""
        return self._address or self._loaded()

    def is_cached(self) -> bool:
        """Check whether no compilation is needed."""
        self.seen = self.seen or any(self._path(folder).is_file() for folder in cache_folders())
        return self.seen

    def read(self) -> None:
        """Read the kernel from the cache for :meth:`load`, which else does it."""
        files = (_read(self._path(folder)) for folder in cache_folders())
        self._data = next((data for data in files if data is not None), None)

    def look_up(self) -> None:
        """Find the functions of the process that the kernel needs for :meth:`load`, which else does it."""
        if self._data is not None:
            self._image, self._data = _parted(self._data), None
            for name in self._image[0].get("outside", ()):
                with contextlib.suppress(AttributeError):
                    _symbol(name)

    def load(self) -> bool:
        """Load the kernel from the cache; return whether it was there."""
        if self._image is None and not self._address:
            self.read()
            self.look_up()
        with _loads:
            image, self._image = self._image, None
            return bool(self._address) or (image is not None and self._load(image))

    def compile(self) -> None:
        """Compile the function and write it to the cache."""
        _write(self._path, _compiled(self))

    def _loaded(self) -> int:
        if not self.load():
            data = _compiled(self)  # without the lock: numba has its own
            with _loads:
                _write(self._path, data)
                if not self._load(_parted(data)):
                    raise ImportError(f"kernel {self.place}: LLVM cannot load its machine code")
        return self._address

    def _load(self, image: Image) -> bool:
        """Make a file executable; return False where it needs symbols that this process does not have."""
        with kernel_times.loading():
            self._engine, self._address = (_placed if "inside" in image[0] else _linked_by_llvm)(*image)
        return bool(self._address)

    def _path(self, folder: Path) -> Path:
        module = self.place.partition(":")[0]
        name = self.place.replace(":", ".")
        return folder / f"{name}.{source_digest(module)[:16]}.{_settings()}.object"

    def find(self) -> Kernel[..., Any]:
        """Import and return the kernel."""
        from nvdla.kernels.jit.compilation import Kernel, njit

        module, _, name = self.place.partition(":")
        kernel: Any = importlib.import_module(PACKAGE + module)
        for part in name.split("."):
            kernel = getattr(kernel, part)
        return kernel if isinstance(kernel, Kernel) else njit(nogil=True)(kernel)


def _parted(data: bytes) -> Image:
    """Return the header of a file and the code after it."""
    head, _, code = data.partition(b"\n")
    return json.loads(head), code


@cache
def object_code(place: str, integers: int) -> ObjectCode:
    """Return the one :class:`ObjectCode` of a kernel in this process."""
    return ObjectCode(place, integers)


def function(place: str, integers: int, holds_lock: bool = False) -> Callable[..., None]:
    """Return a kernel as a function of integers. It raises IndexError where the kernel raises an error.

    ``holds_lock``: Python's lock is not released during the call.
    """
    number = ctypes.c_int64
    kind = ctypes.PYFUNCTYPE if holds_lock else ctypes.CFUNCTYPE
    prototype = kind(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *[number] * integers)
    called, buffer = prototype(object_code(place, integers).address), ctypes.create_string_buffer(32)
    result, error = ctypes.addressof(buffer), ctypes.addressof(buffer) + 16  # only written, by any thread

    def call(*integers: int, _buffer: Any = buffer) -> None:
        if called(result, error, *integers):
            raise IndexError(ERROR)

    return call


LOCK, BUSY, PATIENCE = ".compiling", 75, 1.0
"""Lock file of the process that compiles for a cache directory; exit code of a process that finds it locked; seconds
until the next try then."""
NICENESS = 10
"""Added to that of the parent: where both share one core, the parent still gets nine tenths of it."""
CHILD = f"""import os, sys, json
os.nice({NICENESS})
sys.path[:] = json.loads(sys.argv[1])
from nvdla.kernels.jit import object_code
object_code.main()
"""


class Background:
    """A process of low priority that compiles kernels to the cache directory, at most one per directory.

    It ends after the kernel at which it notices that its parent has ended. Nothing waits for it.
    """

    def __init__(self) -> None:
        self._process, self._again, self._failed = 0, 0.0, False
        self._lock = threading.Lock()

    def is_possible(self) -> bool:
        """Check whether this process can start another one that shares a cache directory with it."""
        return (
            not self._failed
            and fcntl is not None
            and hasattr(os, "posix_spawn")
            and bool(sys.executable)
            and not getattr(sys, "frozen", False)
            and not os.environ.get("NUMBA_DISABLE_JIT")
            and cache_folder() is not None
        )

    def awaits(self, codes: Sequence[ObjectCode]) -> bool:
        """Compile the kernels that are not cached. Return False when all are, or if that is not possible."""
        at = next((at for at, code in enumerate(codes) if not code.is_cached()), None)  # compiled in this order
        if at is None or not self.is_possible():
            return False
        missing = codes[at:]
        with self._lock:
            if self._process:
                self._look(missing)
            if not self._process and not self._failed and time.monotonic() >= self._again:
                self._start(missing)
        return not self._failed

    def _start(self, codes: Sequence[ObjectCode]) -> None:
        words = [f"{code.place}/{code.integers}" for code in codes]
        # Isolated: the child imports nothing from the current directory.
        arguments = [sys.executable, "-I", "-c", CHILD, json.dumps(sys.path), str(os.getpid()), *words]
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        try:  # Ctrl-C is for the parent
            self._process = os.posix_spawn(
                sys.executable, arguments, os.environ, file_actions=null, setsigmask=[signal.SIGINT]
            )
        except OSError:
            self._failed = True

    def _look(self, missing: Sequence[ObjectCode]) -> None:
        """Notice the end of the process."""
        try:
            ended, status = os.waitpid(self._process, os.WNOHANG)
        except ChildProcessError:  # another thread has waited for it
            ended, status = self._process, 0
        if ended:
            self._process = 0
            self._again = time.monotonic() + PATIENCE
            is_busy = os.WIFEXITED(status) and os.WEXITSTATUS(status) == BUSY
            self._failed = not is_busy and not all(code.is_cached() for code in missing)


background = Background()


def main() -> None:
    """Compile the kernels that the command line names until the parent ends."""
    parent, folder = int(sys.argv[2]), cache_folder()
    if folder is None or fcntl is None:
        sys.exit(1)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(BUSY)
        for word in sys.argv[3:]:
            place, _, integers = word.partition("/")
            code = object_code(place, int(integers))
            if os.getppid() == parent and not code.is_cached():
                code.compile()


_loads = threading.Lock()
"""Held while LLVM loads an object: a child that is forked meanwhile could never use LLVM."""


def _after_fork_in_child() -> None:
    global _loads, background
    _loads, background = threading.Lock(), Background()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _loads.acquire() and None,
        after_in_parent=lambda: _loads.release(),
        after_in_child=_after_fork_in_child,
    )


def _placed(header: dict[str, Any], code: bytes) -> tuple[object, int]:
    """Copy an image to executable memory; return the memory and the address of the function, 0 without a symbol."""
    try:
        symbols = {name: _symbol(name) for name in header["outside"]}
    except AttributeError:
        return None, 0
    memory = mmap.mmap(-1, len(code), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[:] = code
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for added, places in ((base, header["inside"]), *((symbols[name], at) for name, at in header["outside"].items())):
        for place in places:
            WORD.pack_into(memory, place, WORD.unpack_from(memory, place)[0] + added)
    words = ctypes.c_void_p(base), ctypes.c_size_t(len(code)), mmap.PROT_READ | mmap.PROT_EXEC
    return memory, 0 if _library().mprotect(*words) else base + header["begin"]


@cache
def _library() -> ctypes.CDLL:
    """Return the functions that this process has."""
    return ctypes.CDLL(None)


@cache
def _symbol(name: str) -> int:
    """Return the address of a function of this process. Raises AttributeError if it has none."""
    return ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value or 0


def _linked_by_llvm(header: dict[str, Any], code: bytes) -> tuple[object, int]:
    """Let LLVM load an object file; return its engine and the address of the function, 0 without a symbol."""
    llvm = _llvm()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    if not all(map(llvm.address_of_symbol, header["needs"])):  # an engine makes those of the process known
        return None, 0
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, int(engine.get_function_address(header["symbol"]))


@cache
def _llvm() -> ModuleType:
    """Import LLVM; numba is not needed."""
    llvm = importlib.import_module("llvmlite.binding")
    with contextlib.suppress(RuntimeError):  # later versions do it themselves
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _machine() -> object:
    """Return a description of this processor for one engine, which takes it over."""
    llvm = _llvm()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        reloc="pic" if sys.platform == "win32" else "default", codemodel="jitdefault", jit=True
    )


@cache
def _settings() -> str:
    """Return a digest of the processor, of versions and of settings that determine the machine code.

    LLVM, whose import takes 20 ms, is not needed on Linux.
    """
    numba = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_") and name not in HARMLESS}
    file = Path(".numba_config.yaml")
    own = b""
    if file.is_file():
        with file.open("rb") as stream:
            own = stream.read(MOST_SETTINGS)
    described = cpuinfo(CPUINFO, "vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    if not described:
        llvm = _llvm()
        described = {"": llvm.get_host_cpu_name() + llvm.get_host_cpu_features().flatten()}
    processor = sys.platform, platform.machine(), sorted(described.items())
    versions = _version("numba"), _version("llvmlite"), sys.version_info[:3]
    key = (processor, versions, dot_instructions(), sorted(numba.items()), own)
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    """Return what determines a package's version, without its import and that of importlib.metadata (5 ms)."""
    spec = importlib.util.find_spec(package)
    try:
        return Path(spec.origin if spec and spec.origin else "").with_name("_version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):  # a frozen application
        from importlib import metadata

        return metadata.version(package)


def _read(path: Path) -> bytes | None:
    """Return the content of an object file, None without a usable one."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head = len(MAGIC) + DIGEST_BYTES
    if data[: len(MAGIC)] != MAGIC or hashlib.sha256(data[head:]).digest() != data[len(MAGIC) : head]:
        return None
    return data[head:]


def _write(path: Callable[[Path], Path], data: bytes) -> None:
    folder = cache_folder()
    if folder is not None:
        new = path(folder)
        with contextlib.suppress(OSError):
            write_whole(new, MAGIC + hashlib.sha256(data).digest() + data)
            name, stamp, *_ = new.name.rsplit(".", 3)
            for old in folder.glob(f"{name}.*.object"):
                if not old.name.startswith(f"{name}.{stamp}."):  # of earlier sources
                    old.unlink()


RUNTIME = """
declare ptr @malloc(i64)
declare void @free(ptr)
define linkonce_odr ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %wide = zext i32 %align to i64
  %larger_size = add i64 %size, %wide
  %all = add i64 %larger_size, 64
  %info = call ptr @malloc(i64 %all)
  %failed = icmp eq ptr %info, null
  br i1 %failed, label %done, label %made
made:
  store i64 1, ptr %info
  %begin = ptrtoint ptr %info to i64
  %after = add i64 %begin, 64
  %less = sub i64 %wide, 1
  %above = add i64 %after, %less
  %mask = xor i64 %less, -1
  %aligned = and i64 %above, %mask
  %data = inttoptr i64 %aligned to ptr
  %place = getelementptr i8, ptr %info, i64 24
  store ptr %data, ptr %place
  br label %done
done:
  ret ptr %info
}
define linkonce_odr void @NRT_MemInfo_call_dtor(ptr %info) {
  call void @free(ptr %info)
  ret void
}
declare double @ldexp(double, i32)
define linkonce_odr double @numba_ldexp(double %number, i32 %power) {
  %scaled = call double @ldexp(double %number, i32 %power)
  ret double %scaled
}
define internal i1 @packed_strides(i64 %axes, ptr %shape, ptr %strides, i64 %itemsize, i1 %fills) {
begin:
  br label %check
check:
  %axis = phi i64 [ %axes, %begin ], [ %before, %next ]
  %size = phi i64 [ %itemsize, %begin ], [ %larger, %next ]
  %checked = icmp eq i64 %axis, 0
  br i1 %checked, label %done, label %look
look:
  %before = sub i64 %axis, 1
  %length_at = getelementptr i64, ptr %shape, i64 %before
  %length = load i64, ptr %length_at
  %stride_at = getelementptr i64, ptr %strides, i64 %before
  %larger = mul i64 %size, %length
  br i1 %fills, label %fill, label %compare
fill:
  store i64 %size, ptr %stride_at
  br label %next
compare:
  %stride = load i64, ptr %stride_at
  %packed = icmp eq i64 %stride, %size
  %single = icmp eq i64 %length, 1
  %fits = or i1 %packed, %single
  br i1 %fits, label %next, label %done
next:
  br label %check
done:
  %result = phi i1 [ true, %check ], [ false, %compare ]
  ret i1 %result
}
define linkonce_odr i32 @numba_attempt_nocopy_reshape(
    i64 %axes, ptr %shape, ptr %strides, i64 %new_axes, ptr %new_shape, ptr %new_strides, i64 %itemsize, i32 %order) {
begin:
  %packed = call i1 @packed_strides(i64 %axes, ptr %shape, ptr %strides, i64 %itemsize, i1 false)
  br i1 %packed, label %fill, label %done
fill:
  call i1 @packed_strides(i64 %new_axes, ptr %new_shape, ptr %new_strides, i64 %itemsize, i1 true)
  br label %done
done:
  %result = phi i32 [ 0, %begin ], [ 1, %fill ]
  ret i32 %result
}
"""
"""Functions of numba's runtime that kernels call, in LLVM's language: allocation of arrays, with the first and fourth
word of numba's header (NRT_MemInfo: references, data), ldexp, and the reshaping of arrays in C order; other arrays are
refused, which is an error."""


def _compiled(code: ObjectCode) -> bytes:
    """Return what a file contains of a kernel: a line of JSON, and the image, or the object file."""
    from nvdla.kernels.jit.linked_code import emitted, image_of

    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise ConfigError(
            f"NUMBA_DISABLE_JIT: must be unset to compile the kernel {code.place}. Single int8 and fp16 runs need none."
        )
    symbol, needs, data = emitted(code.find(), code.integers, RUNTIME)
    image = image_of(data, symbol)
    if image is None or not all(hasattr(_library(), name) for name in image[0]["outside"]):
        image = {"symbol": symbol, "needs": needs}, data
    return json.dumps(image[0]).encode() + b"\n" + image[1]
