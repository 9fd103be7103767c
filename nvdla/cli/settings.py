"""Settings of a folder: ``nvdla.toml``, or ``[tool.nvdla]`` in ``pyproject.toml``, in place of options given each time.

    [tool.nvdla]
    config = "nv_large"
    latency = 60          # the memory behind NVDLA: latency, bandwidth, shared, clock
    mean = [104, 117, 123]   # how images become numbers: mean, normalize, order, resize

What the command line says comes first. Keys are names of options; a command takes those that it has.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from nvdla.errors import ConfigError
from nvdla.files import read_file

MAX_FILE = 1 << 18
MAX_MEAN = 1e30
#: parts of a dotted key: Python's parser takes time and memory that grow with their square
MAX_PARTS = 64
_STRING = re.compile(rb"""\"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_DOTTED = re.compile(rb"[^.,=\[\]{}#\n]+(?:\.[^.,=\[\]{}#\n]+)*")
_NUMBER = (int, float)
#: Names of options that may be set, and what each must be.
KEYS: dict[str, type | tuple[type, ...]] = {
    "config": str,
    "abi": str,
    "threads": int,
    "latency": int,
    "bandwidth": _NUMBER,
    "shared": bool,
    "clock": _NUMBER,
    "mean": (list, *_NUMBER),
    "normalize": _NUMBER,
    "order": str,
    "resize": bool,
}


def apply(parser: argparse.ArgumentParser, folder: Path | None = None) -> None:
    """Make the settings of a folder (by default the present one) the defaults of a command. Raises ConfigError."""
    found, name = read(folder or Path())
    options = {action.dest: action for action in parser._actions if action.option_strings}
    for key, value in found.items():
        action = options.get(key)
        if action is None:
            continue
        if action.choices is not None and value not in action.choices:
            raise ConfigError(f"{name}: {key} is {value!r}, must be one of {', '.join(map(str, action.choices))}")
        parser.set_defaults(**{key: value})


def read(folder: Path) -> tuple[dict[str, Any], str]:
    """The settings of a folder, and the file that they come from; none where there is no file. Raises ConfigError."""
    for name, table in (("nvdla.toml", ()), ("pyproject.toml", ("tool", "nvdla"))):
        path = folder / name
        if path.is_file():
            values = _table(path, table)
            if not table and values and set(values) == {"tool"}:  # as in pyproject.toml
                values = values["tool"].get("nvdla") if isinstance(values["tool"], dict) else values["tool"]
            if values is not None:
                return _checked(values, name), name
    return {}, ""


def _table(path: Path, keys: tuple[str, ...]) -> dict[str, Any] | None:
    data = read_file(path, MAX_FILE, "settings")
    if keys and b"nvdla" not in data:
        return None
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib
        except ImportError:
            if keys:
                return None
            raise ConfigError(
                f"{path.name}: Python 3.10 reads TOML with the package tomli: pip install tomli"
            ) from None
    if any(key.group().count(b".") >= MAX_PARTS for key in _DOTTED.finditer(_STRING.sub(b"s", data))):
        raise ConfigError(f"{path.name}: a dotted key has more than {MAX_PARTS} parts")
    try:
        values: Any = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        if keys:
            return None  # somebody else's file
        raise ConfigError(f"{path.name}: not TOML: {error}") from None
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _checked(values: Any, name: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: tool.nvdla must be a table")
    for key, value in values.items():
        kinds = KEYS.get(key)
        if kinds is None:
            raise ConfigError(f"{name}: unknown key {key!r}; known are {', '.join(KEYS)}")
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise ConfigError(f"{name}: {key} is {str(value)[:80]!r}, which is of the wrong kind")
    return {key: _numbers(value, name) if key == "mean" else value for key, value in values.items()}


def _numbers(value: Any, name: str) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(each, _NUMBER) and not isinstance(each, bool) for each in numbers):
        raise ConfigError(f"{name}: mean must be numbers, one or one a channel")
    if not all(abs(each) <= MAX_MEAN for each in numbers):  # not so for NaN
        raise ConfigError(f"{name}: mean is {str(value)[:80]}, must be finite numbers of at most {MAX_MEAN:g}")
    return tuple(map(float, numbers))
