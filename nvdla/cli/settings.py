"""Settings of a folder: ``nvdla.toml``, or ``[tool.nvdla]`` in ``pyproject.toml``, in place of options given each time.

    [tool.nvdla]
    config = "nv_large"
    latency = 60          # external memory: latency, bandwidth, shared, clock
    mean = [104, 117, 123]   # how images become numbers: mean, std, scale, color, resize

The command line takes precedence. Keys are names of options; a command takes those that it has, and names the file
and what it took from it on standard error and in JSON.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvdla.errors import ConfigError, NvdlaError
from nvdla.util.escaping import Document
from nvdla.util.files import read_file, require_file

MAX_FILE = 1 << 18
#: bytes of a pyproject.toml that is searched for the heading of settings; a longer one belongs to other tools
MAX_FOREIGN = 1 << 24
MAX_MEAN = 1e30
#: parts of a dotted key: Python's parser takes time and memory that grow with their square
MAX_PARTS = 64
_STRING = re.compile(rb"""\"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_HEADING = re.compile(rb"""^[ \t]*\[[ \t]*["']?tool["']?[ \t]*\.[ \t]*["']?nvdla["']?[ \t]*\]""", re.MULTILINE)
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
    "std": (list, *_NUMBER),
    "scale": (list, *_NUMBER),
    "color": str,
    "resize": (bool, int),
    "crop": int,
    "interpolation": str,
}

#: keys with one number or one per channel
NUMBERS = ("mean", "std", "scale")


@dataclass(frozen=True)
class UsedSettings:
    """The settings that a command uses: those of its options that the command line does not give."""

    file: str = ""
    values: Document = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values)

    def __str__(self) -> str:
        return f"settings of {self.file}: {', '.join(_said(key, value) for key, value in self.values.items())}"

    def document(self) -> Document:
        """File and values, for JSON."""
        return {"file": self.file, "values": self.values}

    def explained(self, error: NvdlaError) -> str:
        """Return an error's message with the settings that cause it (:attr:`NvdlaError.options`)."""
        causes = [_said(key, value) for key, value in self.values.items() if key in error.options]
        return f"{error} ({', '.join(causes)} is a setting of {self.file})" if causes else str(error)


def _said(key: str, value: Any) -> str:
    text = f"[{', '.join(f'{number:g}' for number in value)}]" if isinstance(value, tuple) else str(value)
    return f"{key} = {text}"


class _Setting:
    """A default that comes from a file: after parsing it is still there where the command line gave nothing."""

    def __init__(self, value: object, written: object) -> None:
        self.value, self.written = value, written


def apply(parser: argparse.ArgumentParser, folder: Path | None = None) -> str:
    """Make the settings of a directory (default: the current one) the defaults of a command; :func:`taken` follows.

    Returns:
        The name of the file, "" where there is none.

    Raises:
        ConfigError: The file is malformed, or a value is none of its option.
    """
    values, name = read(folder or Path())
    _set_defaults(parser, values, name)
    return name


def _set_defaults(parser: argparse.ArgumentParser, values: Mapping[str, Any], name: str) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                _set_defaults(part, values, name)
        elif action.option_strings and action.dest in values:
            value = values[action.dest]
            parser.set_defaults(**{action.dest: _Setting(_converted(action, action.dest, value, name), value)})
            action.required = False


def taken(args: argparse.Namespace, name: str) -> tuple[Document, UsedSettings]:
    """Return the arguments with the values of settings, and the settings that the command line has not replaced."""
    settings = {key: setting for key, setting in vars(args).items() if isinstance(setting, _Setting)}
    used = UsedSettings(name, {key: setting.written for key, setting in settings.items()})
    values = {key: setting.value for key, setting in settings.items()}
    return vars(args) | values, used


def _converted(action: argparse.Action, key: str, value: Any, name: str) -> Any:
    """A value as the option's own text would give it. Raises ConfigError."""
    if action.choices is not None and value not in action.choices:
        raise ConfigError(f"{name}: {key}: must be one of {', '.join(map(str, action.choices))}, got {value!r}")
    if isinstance(value, (bool, tuple)):
        return value
    if key == "config":
        for part in (word for word in value.split(",") if word.endswith((".yaml", ".yml"))):
            require_file(part, f"{name}: config")
    try:
        text = str(value)
        return action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise ConfigError(f"{name}: {key}: {error}") from None


def read(folder: Path) -> tuple[Document, str]:
    """The settings of a folder, and the file that they come from; none without such a file. Raises ConfigError."""
    for name, table in (("nvdla.toml", ()), ("pyproject.toml", ("tool", "nvdla"))):
        path = folder / name
        if path.is_file():
            values = _table(path, table)
            if not table and values and set(values) == {"tool"}:  # as in pyproject.toml
                values = values["tool"].get("nvdla") if isinstance(values["tool"], dict) else values["tool"]
            if values is not None:
                return _checked(values, name), name
    return {}, ""


def _table(path: Path, keys: tuple[str, ...]) -> Document | None:
    if keys and path.stat().st_size > MAX_FOREIGN:
        return None
    data = read_file(path, MAX_FOREIGN if keys else MAX_FILE, "settings")
    is_ours = not keys or bool(_HEADING.search(data))
    if keys and b"nvdla" not in data:
        return None
    if len(data) > MAX_FILE:
        if not is_ours:
            return None
        raise ConfigError(
            f"{path.name}: must be at most {MAX_FILE} bytes, got {len(data)}. Put the settings in nvdla.toml."
        )
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
        if not is_ours:
            return None
        raise ConfigError(f"{path.name}: dotted key: must have at most {MAX_PARTS} parts, got more")
    try:
        values: Any = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        if keys:
            return None  # a file of another user
        raise ConfigError(f"{path.name}: must be TOML: {error}") from None
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _checked(values: Any, name: str) -> Document:
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: tool.nvdla must be a table")
    for key, value in values.items():
        kinds = KEYS.get(key)
        if kinds is None:
            raise ConfigError(f"{name}: unknown key {key!r}: must be one of {', '.join(KEYS)}")
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds not in (bool, (bool, int))):
            expected = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
            raise ConfigError(f"{name}: {key}: must be {expected}, got {str(value)[:80]!r}")
    return {key: _numbers(value, f"{name}: {key}") if key in NUMBERS else value for key, value in values.items()}


def _numbers(value: Any, name: str) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(number, _NUMBER) and not isinstance(number, bool) for number in numbers):
        raise ConfigError(f"{name} must be one number, or one per channel")
    if not all(abs(number) <= MAX_MEAN for number in numbers):  # not so for NaN
        raise ConfigError(f"{name}: must be finite numbers of at most {MAX_MEAN:g}, got {str(value)[:80]!r}")
    return tuple(map(float, numbers))
