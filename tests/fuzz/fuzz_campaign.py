"""Long fuzz runs, guided by coverage where atheris is installed (pip install atheris).

    python tests/fuzz/fuzz_campaign.py TARGET --inputs 1000000 [--work FOLDER] [--boundscheck]

What escapes the toolkit's own errors, takes longer than --slow seconds or more memory than --memory is written to
FOLDER/TARGET/findings, once for each place in the code, and the run goes on. The inputs that reached new code stay in
FOLDER/TARGET/corpus, so a later run continues. The last line is a JSON document with the figures. ``--boundscheck``
lets numba check every index of the kernels (slower; keeps a kernel cache of its own); ``--blind`` mutates the corpus
without looking at coverage (about five times as fast).
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import json
import os
import pkgutil
import random
import re
import resource
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Recorder:
    """Feeds a target and notes what goes wrong."""

    def __init__(self, one_input, folder: Path, slow: float) -> None:  # type: ignore[no-untyped-def]
        self.one_input = one_input
        module = sys.modules.get(getattr(one_input, "__module__", ""))
        self.folder = folder
        self.slow = slow
        self.inputs = 0
        self.findings: dict[str, int] = {}
        #: what became of the inputs, where the target counts that
        self.outcomes = getattr(module, "outcomes", {})
        self.stored = getattr(module, "stored", bytes)
        self.began = time.perf_counter()
        self.saved = self.said = self.began
        folder.joinpath("findings").mkdir(parents=True, exist_ok=True)

    def __call__(self, data: bytes) -> None:
        self.inputs += 1
        seconds = self.seconds(data)
        if seconds > self.slow:
            seconds = self.seconds(data)  # the first time a kernel may have been compiled
            if seconds > self.slow:
                self.note(f"slow-{int(seconds)}s", data, TimeoutError(f"{seconds:.1f} seconds"))
        if time.perf_counter() - self.saved > 5:
            self.save()

    def seconds(self, data: bytes) -> float:
        """Processor time of the target and of its children, or a tenth of its wall time where that is more: a busy
        machine makes every input wait, a wait without end is a defect. What escapes the target is noted."""
        began, used = time.perf_counter(), _processor_time()
        try:
            self.one_input(data)
        except Exception as error:
            self.note(_place(error), data, error)
        return max(_processor_time() - used, (time.perf_counter() - began) / 10)

    def note(self, place: str, data: bytes, error: BaseException) -> None:
        self.findings[place] = self.findings.get(place, 0) + 1
        if self.findings[place] == 1:
            name = hashlib.sha256(place.encode()).hexdigest()[:12]
            self.folder.joinpath("findings", name).write_bytes(self.stored(data))
            text = "".join(traceback.format_exception(error))
            self.folder.joinpath("findings", name + ".txt").write_text(f"{place}\n\n{text}", encoding="utf-8")

    def save(self) -> None:
        """So that a killed process has its figures."""
        self.saved = time.perf_counter()
        if self.saved - self.said > 60:
            self.said = self.saved
            print(f"{self.inputs} inputs, {len(self.findings)} findings, {dict(self.outcomes)}", flush=True)
        figures = {"inputs": self.inputs, "seconds": round(self.saved - self.began, 1), "findings": self.findings}
        figures |= {"outcomes": dict(self.outcomes)} if self.outcomes else {}
        self.folder.joinpath(f"figures-{os.getpid()}.json").write_text(json.dumps(figures), encoding="utf-8")


def _processor_time() -> float:
    usage = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)


def _place(error: BaseException) -> str:
    """Where an exception was raised, in the toolkit rather than in a library it called."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "nvdla" in frame.filename or "kernels" in frame.filename] or frames
    said = re.sub(r"[\d.-]+", "#", f" {error}") if isinstance(error, RuntimeError) else ""
    return f"{type(error).__name__} {Path(ours[-1].filename).name}:{ours[-1].lineno}{said[:100]}"


def child(args: argparse.Namespace) -> None:
    """The process that fuzzes."""
    resource.setrlimit(resource.RLIMIT_AS, (args.memory << 20, args.memory << 20))
    sys.setrecursionlimit(1000)
    folder = Path(args.work) / args.target
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    try:
        atheris = None if args.blind else importlib.import_module("atheris")
    except ImportError:
        atheris = None
    import fuzz_targets
    from fuzz_mutator import inherit

    if args.plain:
        from nvdla.kernels.jit.compilation import fallback_work

        fallback_work.left = 1 << 62
    target = fuzz_targets.TARGETS[args.target]
    if atheris is None:
        _plant(target, corpus)
        return _plain(target, Recorder(target.one_input(), folder, args.slow), args, corpus)
    for name in ("kernels", *target.elsewhere):  # numba cannot compile instrumented functions
        package = importlib.import_module(f"nvdla.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    with atheris.instrument_imports(include=["nvdla"]):
        one_input = target.one_input()
    _plant(target, corpus)
    recorder = Recorder(one_input, folder, args.slow)
    gc.freeze()  # modules stay: collections need not look at them each time
    gc.set_threshold(20_000, 20, 20)

    def custom(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.randrange(4) == 0:
            return inherit(data, atheris.Mutate(data, max_size))
        return target.mutate(data, rng)[:max_size]

    options = [f"-runs={args.inputs}", f"-max_len={target.max_len}", f"-seed={args.seed}", "-rss_limit_mb=0"]
    options += [f"-max_total_time={args.seconds}", "-timeout=600", "-use_value_profile=0", "-print_final_stats=1"]
    options += [f"-artifact_prefix={folder}/findings/"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], recorder, custom_mutator=custom if target.mutator else None)
    try:
        atheris.Fuzz()
    finally:
        recorder.save()
    return None


def _plant(target, corpus: Path) -> None:  # type: ignore[no-untyped-def]
    """Put the seeds into the corpus. The target is imported before, so that the toolkit is instrumented."""
    for seed in target.seed_inputs():
        corpus.joinpath(hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)


def _plain(target, recorder: Recorder, args: argparse.Namespace, corpus: Path) -> None:  # type: ignore[no-untyped-def]
    """Without atheris: mutations of the seeds, blind."""
    rng = random.Random(args.seed)
    seeds = [path.read_bytes() for path in sorted(corpus.iterdir())]
    while recorder.inputs < args.inputs and time.perf_counter() - recorder.began < args.seconds:
        recorder(target.mutate(rng.choice(seeds), rng)[: target.max_len])
    recorder.save()


def parent(args: argparse.Namespace) -> int:
    """Runs children (again after a crash) until the inputs or the time are used up."""
    folder = Path(args.work) / args.target
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    if args.boundscheck:
        environment |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(Path(args.work).resolve() / "kernels")}
        Path(args.work, "kernels").mkdir(mode=0o700, exist_ok=True)
    began, crashes, total = time.time(), 0, 0
    log = folder / "log.txt"
    while total < args.inputs and time.time() - began < args.seconds and crashes < 20:
        for old in folder.glob("figures-*.json"):
            old.unlink()
        left = [f"--inputs={args.inputs - total}", f"--seconds={max(int(args.seconds - (time.time() - began)), 1)}"]
        command = [sys.executable, __file__, args.target, "--child", f"--work={args.work}", *left]
        command += [f"--seed={args.seed + crashes}", f"--slow={args.slow}", f"--memory={args.memory}"]
        command += ["--blind"] * args.blind + ["--plain"] * args.plain
        with log.open("ab") as stream:
            code = subprocess.run(command, env=environment, stdout=stream, stderr=stream, check=False).returncode
        text = log.read_text(encoding="utf-8", errors="replace")
        done = re.findall(r"stat::number_of_executed_units: (\d+)|^#(\d+)\s", text, re.M)
        figures = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("figures-*.json")]
        ran = max([each["inputs"] for each in figures] + [int(a or b) for a, b in done[-1:]] + [0])
        total += ran
        crashes += code != 0
        if not ran and (code == 0 or crashes > 2):  # nothing was fed: it would end the same way again
            print(text[-2000:], file=sys.stderr)
            break
    coverage = re.findall(r"cov: (\d+) ft: (\d+)", log.read_text(encoding="utf-8", errors="replace"))
    findings = sorted(path.name for path in folder.joinpath("findings").glob("*.txt"))
    print(json.dumps({
        "target": args.target, "inputs": total, "seconds": round(time.time() - began), "crashes": crashes,
        "edges": int(coverage[-1][0]) if coverage else None, "features": int(coverage[-1][1]) if coverage else None,
        "corpus": len(list(folder.joinpath("corpus").glob("*"))), "findings": findings,
    }))  # fmt: skip
    return 1 if findings or crashes else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=10**6)
    parser.add_argument("--work", default="fuzz-work")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow", type=float, default=2.0, help="seconds after which an input is a finding")
    parser.add_argument("--memory", type=int, default=6144, help="MiB of address space")
    parser.add_argument("--blind", action="store_true", help="mutate the corpus without looking at coverage: faster")
    parser.add_argument("--plain", action="store_true", help="kernels that have a plain form stay with it")
    parser.add_argument("--boundscheck", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    from fuzz_targets import TARGETS

    if args.target not in TARGETS:
        parser.error(f"target: unknown: must be one of {', '.join(TARGETS)}")
    if args.child:
        child(args)
        return 0
    return parent(args)


if __name__ == "__main__":
    sys.exit(main())
