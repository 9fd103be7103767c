"""The scripts of docs/evaluate.md for Slurm and Kubernetes run as they stand there, with stand-ins for the clusters."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LENET, DIGITS = str(ROOT / "samples" / "lenet.loadable"), str(ROOT / "samples" / "digits.npz")
#: sbatch starts the job on this machine; scancel ends it
SBATCH = '#!/bin/bash\nsetsid bash "${@: -1}" >"$0.log" 2>&1 &\necho "Submitted batch job $!"\n'
SCANCEL = '#!/bin/bash\nfor job in "$@"; do kill -- -"$job"; done\n'


def block(start: str) -> str:
    text = (ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8")
    return next(code for code in re.findall(r"```\w+\n(.*?)```", text, flags=re.S) if code.startswith(start))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with stand-ins for Slurm's commands, and the virtual environment that the job activates."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "home" / "nvdla" / "bin").mkdir(parents=True)
    (tmp_path / "home" / "nvdla" / "bin" / "activate").write_text("activated=yes\n")
    commands = {"sbatch": SBATCH, "scancel": SCANCEL}
    commands["nvdla"] = f'#!/bin/bash\nexec {sys.executable} -m nvdla "$@"\n'
    for name, text in commands.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "PATH": path,
        "DASK_CONFIG": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }


def evaluated(tmp_path: Path, *words: str) -> bytes:
    """The result of one run on this machine."""
    alone = [sys.executable, "-m", "nvdla", "evaluate", LENET, DIGITS, "--limit", "40", "-o", "alone.json", *words]
    subprocess.run(alone, cwd=tmp_path, check=True, capture_output=True)
    return (tmp_path / "alone.json").read_bytes()


def run_script(script: str, tmp_path: Path, environment: dict[str, str]) -> bytes:
    (tmp_path / "script.py").write_text(script)
    words = ["evaluate", LENET, DIGITS, "--limit", "40", "-o", "cluster.json"]
    done = subprocess.run(
        [sys.executable, "script.py", *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (tmp_path / "cluster.json").read_bytes()


def test_the_slurm_script_starts_workers_and_gives_the_result_of_one_machine(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    pytest.importorskip("dask_jobqueue")
    script = block("# slurm.py")
    small = {'"processes": 8': '"processes": 1', '"cores": 8': '"cores": 1', "jobs=4": "jobs=2"}
    for words, fewer in small.items():
        assert words in script
        script = script.replace(words, fewer)
    assert run_script(script, tmp_path, environment) == evaluated(tmp_path)
    assert (tmp_path / "bin" / "sbatch.log").exists()


def test_the_job_of_slurm_has_the_settings_of_the_script() -> None:
    jobqueue = pytest.importorskip("dask_jobqueue")
    body = ast.parse(block("# slurm.py")).body
    job = next(ast.literal_eval(node.value) for node in body if isinstance(node, ast.Assign))
    with jobqueue.SLURMCluster(**job) as cluster:
        text = cluster.job_script()
    for line in ("#SBATCH --cpus-per-task=8", "#SBATCH --mem=15G", "#SBATCH -t 02:00:00", "--nworkers 8"):
        assert line in text
    assert text.index("source ~/nvdla/bin/activate") < text.index("dask_worker")


#: In place of KubeCluster: workers on this machine, as many as the specification of the pods states.
KUBE = """import dask_kubernetes.operator, distributed

class KubeCluster(distributed.LocalCluster):
    def __init__(self, custom_cluster_spec):
        spec = custom_cluster_spec["spec"]
        assert custom_cluster_spec["kind"] == "DaskCluster"
        pods = [spec[part]["spec"]["containers"][0] for part in ("worker", "scheduler")]
        assert [pod["args"][0] for pod in pods] == ["dask-worker", "dask-scheduler"]
        assert {pod["image"] for pod in pods} == {"registry.example.com/nvdla-dask:latest"}
        super().__init__(n_workers=spec["worker"]["replicas"] // 4, threads_per_worker=1, dashboard_address=None)

dask_kubernetes.operator.KubeCluster = KubeCluster
"""


def test_the_kubernetes_script_gives_the_result_of_one_machine(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("dask_kubernetes")
    assert run_script(KUBE + block("# kubernetes.py"), tmp_path, environment) == evaluated(tmp_path)


def test_the_array_of_slurm_gives_the_result_of_one_machine(tmp_path: Path, environment: dict[str, str]) -> None:
    script = block("#!/bin/bash\n#SBATCH").replace("/64", "/2").replace("val.csv", f"{DIGITS} --limit 40")
    script = script.replace("net.loadable", LENET)
    for number in ("1", "2"):
        words = {**environment, "SLURM_ARRAY_TASK_ID": number}
        subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=words, check=True, capture_output=True)
    merge = script[script.index("# afterwards, once: ") :].partition(": ")[2]
    subprocess.run(["bash", "-ec", merge], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "result.json").read_bytes() == evaluated(tmp_path)
