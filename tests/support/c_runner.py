"""The exported C program as a process of this machine, its registers connected to the emulator's register server."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from nvdla.emulator.memory.address_space import Space
from nvdla.registers.register_program import RegisterProgram
from nvdla.registers.server import MemoryPlan, RegisterServer, listen

C = Path(__file__).resolve().parents[2] / "nvdla" / "registers" / "c"
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "nvdla_remote.h"
#include "{name}.h"

/* MAIN socket dram cvsram runs: the self-test first, then `runs` more runs on the bound inputs in memory. */
int main(int count, char **words) {{
    static nvdla_remote remote;
    static nvdla_device device;
    int runs, result;
    if (count != 5 || nvdla_remote_open(&remote, words[1]) != 0) {{
        perror("cannot connect");
        return 2;
    }}
    device.context = &remote;
    device.base[0] = {dram_base}u;
    device.base[1] = {cvsram_base}u;
    device.memory[0] = nvdla_remote_map(words[2], {dram_size}u);
    device.memory[1] = {cvsram_size}u ? nvdla_remote_map(words[3], {cvsram_size}u) : 0;
    result = {name}_selftest(&device);
    for (runs = atoi(words[4]); result == NVDLA_OK && runs > 0; runs--) {{
        result = nvdla_run(&device, &{name});
    }}
    nvdla_remote_close(&remote);
    return result;
}}
"""


def compile_runner(
    folder: Path, program: RegisterProgram, compiler: Sequence[str] = ("gcc",), interrupts: bool = False
) -> Path:
    """The exported program in ``folder`` with a main program that talks to the register server."""
    sizes = [program.sizes.get(space, 0) for space in (Space.DRAM, Space.CVSRAM)]
    bases = [program.bases.get(space, 0) for space in (Space.DRAM, Space.CVSRAM)]
    text = MAIN.format(
        name=program.name, dram_base=bases[0], cvsram_base=bases[1], dram_size=sizes[0], cvsram_size=sizes[1]
    )
    (folder / "main.c").write_text(text)
    shutil.copy(C / "nvdla_remote.h", folder / "nvdla_remote.h")
    names = [f"{each}.c" for each in (program.name, f"{program.name}_selftest", "main")]
    target = folder / "program"
    built = runner_objects(tuple(compiler), interrupts)
    command = [*compiler, "-std=c99", *WARNINGS, *_defines(interrupts), *names, *built, "-o", str(target)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return target


def _defines(interrupts: bool) -> list[str]:
    return ['-DNVDLA_PORT_FILE="nvdla_remote.h"', f"-DNVDLA_INTERRUPTS={int(interrupts)}", "-DNVDLA_POLL_LIMIT=8u"]


@cache
def runner_objects(compiler: tuple[str, ...], interrupts: bool) -> list[str]:
    """The runner's own files, compiled once for all programs."""
    folder = Path(tempfile.mkdtemp(prefix="nvdla-runner-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built = []
    for name in ("nvdla_runner", "nvdla_cpu", "nvdla_remote"):
        target = folder / f"{name}.o"
        command = [*compiler, "-std=c99", "-O1", *WARNINGS, *_defines(interrupts), "-c", str(C / f"{name}.c")]
        subprocess.run([*command, "-o", str(target)], check=True, capture_output=True, text=True)
        built.append(str(target))
    return built


class Served:
    """A register server in a thread, with files as memories; ``log`` has every register write of the client."""

    def __init__(self, folder: Path, program: RegisterProgram) -> None:
        self.folder = folder
        self.register_program = program
        self.paths = {space: folder / f"{space.value}.memory" for space in Space}
        plans = [
            MemoryPlan(space, program.bases[space], program.sizes[space], self.paths[space]) for space in program.sizes
        ]
        self.server = RegisterServer(program.config, plans)
        for each in program.segments:  # what an image holds; arrays in the program are the same
            view = self.server.space.view(each.space, program.bases[each.space] + each.offset, each.size)
            view[:] = each.data
        self.log: list[tuple[int, int]] = []
        make = self.server.machine

        def logged():
            machine = make()
            write = machine.registers.write

            def noted(address: int, value: int) -> None:
                self.log.append((address, value))
                write(address, value)

            machine.registers.write = noted
            return machine

        self.server.machine = logged

    def run(self, target: Path, runs: int = 0, before: Sequence[str] = ()) -> tuple[int, str]:
        """Exit code and standard error of the program."""
        return self.execute([*before, target, "SOCKET", *(self.paths[space] for space in Space), runs])

    def execute(self, words: Sequence[object]) -> tuple[int, str]:
        """Exit code and standard error of a command that gets the server's address in place of the word SOCKET."""
        path = str(self.folder / "s")
        listener = listen(path)
        thread = threading.Thread(target=self.server.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            command = [path if word == "SOCKET" else str(word) for word in words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            return done.returncode, done.stderr
        finally:
            listener.shutdown(2)
            listener.close()
            thread.join(10)
            Path(path).unlink()

    def outputs(self) -> list[bytes]:
        """Bound outputs as they lie in memory."""
        return [
            np.fromfile(self.paths[each.space], np.uint8, each.size, offset=each.offset).tobytes()
            for each in self.register_program.outputs
        ]
