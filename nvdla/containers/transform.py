"""What ``convert`` does to a list of parameters on the way: exclude, rename, strip, splat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nvdla.containers.parameters import ELEMENT_BITS, Parameter
from nvdla.containers.values import element_type, pattern_of
from nvdla.errors import FormatError


def transform(
    parameters: Sequence[Parameter],
    exclude: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    strip: bool = False,
    splat: Sequence[str] = (),
) -> list[Parameter]:
    """The changed list, in the same order.

    ``strip`` turns every parameter into a splat of zero, ``splat`` those it names into a splat of a value: ``NAME``,
    ``NAME=VALUE`` (of the recorded type) or ``NAME=TYPE=VALUE``. Shape, type and metadata stay. Names are those before
    renaming. FormatError for a name that is not there.
    """
    names = {p.name for p in parameters}
    wanted = {}
    for text in splat:
        # The longest prefix that is a name: names may hold "=".
        name = next((n for n in _prefixes(text) if n in names), text.partition("=")[0])
        wanted[name] = text[len(name) + 1 :]
    rename = rename or {}
    for name in (*exclude, *rename, *wanted):
        if name not in names:
            raise FormatError(f"no parameter named {name!r}")
    result = []
    for parameter in parameters:
        if parameter.name in exclude:
            continue
        changed = parameter
        if parameter.name in wanted:
            changed = _as_splat(parameter, wanted[parameter.name])
        elif strip:
            changed = replace(parameter, data=None, pattern=b"\0")
        result.append(replace(changed, name=rename.get(parameter.name, parameter.name)))
    return result


def _prefixes(text: str) -> list[str]:
    cuts = [i for i, c in enumerate(text) if c == "="]
    return [text, *(text[:i] for i in reversed(cuts))]


def _as_splat(parameter: Parameter, text: str) -> Parameter:
    kind, _, value = text.rpartition("=")
    dtype = element_type(kind) if kind else parameter.dtype
    if not value:
        return replace(parameter, data=None, pattern=b"\0")
    if dtype is None or ELEMENT_BITS[dtype] < 8:
        raise FormatError(
            f"parameter {parameter.name!r}: its element type is not recorded; give {parameter.name}=TYPE=VALUE"
        )
    pattern = pattern_of(dtype, value)
    if parameter.length % len(pattern):
        raise FormatError(f"parameter {parameter.name!r}: {parameter.length} bytes are no whole number of {dtype}")
    return replace(parameter, data=None, pattern=pattern)
