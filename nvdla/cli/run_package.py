"""``nvdla run`` on a package of ``nvdla compile``: accelerator parts bit-exactly, host parts in onnxruntime."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.cli.arguments import split_name, tell_warnings
from nvdla.cli.output import plain, print_document, print_table, say
from nvdla.cli.times import Times
from nvdla.errors import FormatError, shape_text
from nvdla.files import write_file
from nvdla.frontend.data import IMAGES
from nvdla.frontend.package import Package, unpack
from nvdla.tensors.files import read_npy
from nvdla.tensors.preprocessing import Preprocessing

OUTPUTS = (".npy", ".json")


def run_package(args: argparse.Namespace) -> int:
    """Real numbers in and out, by the model's names."""
    package = unpack(args.loadable)
    files = _by_name(args.input, list(package.manifest["inputs"]), "input")
    missing = [name for name in package.manifest["inputs"] if name not in files]
    if missing:
        raise FormatError(f"input {', '.join(missing)} is missing; give --input {missing[0]}=FILE")
    outputs = _by_name(args.output, list(package.manifest["outputs"]), "output")
    for path in outputs.values():
        if Path(path).suffix not in OUTPUTS:
            raise FormatError(f"{path}: an output of a package is written as {' or '.join(OUTPUTS)}")
    feeds = {name: _read(package, name, path) for name, path in files.items()}
    times = Times()
    machine = package.machine(strict=args.strict)
    times.linked()
    with times.running():
        results = machine.run(feeds)
    tell_warnings(args.loadable, machine.warnings())
    for name, path in outputs.items():
        write_file(path, _written(path, results[name]))
    _report(args, package, results, times)
    return 0


def _by_name(words: list[str], names: list[str], what: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, path = split_name(word)
        name = next((each for each in names if each not in found), None) if name is None else name
        if name not in names or name in found:
            raise FormatError(f"--{what} {word}: the model's {what}s are {', '.join(names) or 'none'}")
        found[name] = path
    return found


def _read(package: Package, name: str, path: str) -> np.ndarray:
    shape = tuple(package.manifest["inputs"][name])
    suffix = Path(path).suffix.lower()
    if suffix in IMAGES:
        document = package.manifest.get("preprocessing")
        return (Preprocessing.of(document) if document else Preprocessing()).image(path, shape)
    if suffix != ".npy":
        raise FormatError(f"{path}: an input of a package is an image or .npy with the model's real numbers")
    array = read_npy(path)
    if array.size != int(np.prod(shape)):
        raise FormatError(f"{path}: {array.size} elements for input {name} of shape {shape_text(shape)}")
    return array.reshape(shape)


def _written(path: str, array: np.ndarray) -> bytes:
    if Path(path).suffix == ".json":
        return json.dumps(plain(array.tolist())).encode() + b"\n"
    import io

    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def _report(args: argparse.Namespace, package: Package, results: dict[str, Any], times: Times) -> None:
    parts = [{"part": number, "kind": part.kind, "nodes": len(part.nodes)} for number, part in enumerate(package.parts)]
    rows = {}
    for name, array in results.items():
        flat = np.asarray(array).ravel()
        order = np.argsort(-flat.astype(np.float64), kind="stable") if flat.dtype.kind in "fiu" else np.empty(0, int)
        top = [{"index": int(place), "value": float(flat[place])} for place in order[: args.top]]
        rows[name] = {"shape": list(array.shape), "dtype": str(array.dtype), "top": top}
    document = {"model": package.manifest["model"], "config": package.manifest["config"], "seconds": times.run}
    document["times"] = times.document()
    if print_document({**document, "parts": parts, "outputs": rows}, args):
        return
    print_table(f"{document['model']} on {document['config']}", parts, ["part", "kind", "nodes"])
    for name, row in rows.items():
        say(f"{name}: {shape_text(row['shape'])} {row['dtype']}")
        for each in row["top"]:
            print(f"  {each['index']:>5}  {each['value']:g}")
    times.tell(args.quiet)
