"""YAML that a user hands in: the plain part of the language, counted before it is built."""

from __future__ import annotations

import contextlib
import math
import time

import pytest

from nvdla.errors import FormatError
from nvdla.util import yaml as plain_yaml
from nvdla.util.yaml import parse_yaml

VALUES = {
    "": None,
    "a: 1\nb: [true, null, ~, -3, 0x1f, 0o17]": {"a": 1, "b": [True, None, None, -3, 31, 15]},
    "a: 0.0203\nb: 1e-3\nc: -.INF": {"a": 0.0203, "b": 0.001, "c": -math.inf},
    "0/1: conv1\n0/2: 'on'\n0/3: yes": {"0/1": "conv1", "0/2": "on", "0/3": "yes"},
    "day: 2001-01-01\ntime: 1:30": {"day": "2001-01-01", "time": "1:30"},
    "a: &x [1]\nb: *x": {"a": [1], "b": [1]},
    "- !!str 5\n- !!int 5\n- !!float 5": ["5", 5, 5.0],
    "text: |\n  two\n  lines\n": {"text": "two\nlines\n"},
    "'<<': 1": {"<<": 1},
}

REFUSED = {
    "merge_key": ("a: {x: 1}\nb:\n  <<: {y: 2}", "line 3: merge keys"),
    "merge_of_aliases": ("a: &a {x: 1}\nb: {<<: [*a, *a]}", "line 2: merge keys"),
    "aliases": ("- &a x\n" + "- *a\n" * 65, "line 66: aliases .* must be at most 64"),
    "itself": ("&a [*a]", r"alias \*a: must name an anchor"),
    "empty_int": ("!!int ''", "must be !!int, got ''"),
    "timestamp": ("!!timestamp foo", "tag: must be"),
    "binary": ("!!binary x", "tag: must be"),
    "set": ("!!set {a}", "tag: must be"),
    "omap": ("!!omap [a]", "tag: must be"),
    "bool": ("!!bool maybe", "must be !!bool, got 'maybe'"),
    "null": ("!!null x", "must be !!null, got 'x'"),
    "float": ("!!float x", "must be !!float, got 'x'"),
    "list_as_map": ("!!map [a]", "tag: must be"),
    "python": ("!!python/object/apply:os.system ['touch owned']", "tag: must be"),
    "digits": ("9" * 5000, "must have at most 400 characters, got 5000"),
    "hexadecimal_digits": ("!!int 0x" + "f" * 5000, "must have at most 400 characters, got 5002"),
    "depth": ("[" * 100_000, "must be nested at most 32"),
    "depth_of_blocks": ("- " * 50_000, "must be nested at most 32"),
    "nodes": ("[" + "a," * 20_000 + "]", "must be at most 16384"),
    "list_as_key": ("? [a]\n: b", "a key must be a scalar"),
    "key_again": ("a: 1\na: 2", "line 2: key 'a': must be unique"),
    "documents": ("a\n---\nb", "must contain one document"),
    "no_text": ("\x00\x01", "must be YAML"),
    "open": ("[a, b", "must be YAML"),
}


@pytest.fixture(params=["libyaml", "python"])
def parser(request, monkeypatch):
    """Both of PyYAML's parsers: the one in C is missing in some builds."""
    import yaml

    if request.param == "python":
        monkeypatch.delattr(yaml, "CLoader", raising=False)


@pytest.mark.parametrize("text", VALUES)
def test_plain_yaml_is_read_by_the_core_schema(text, parser):
    assert parse_yaml(text, "names.yaml") == VALUES[text]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_plain_is_refused_with_its_line(name, parser):
    text, message = REFUSED[name]
    with pytest.raises(FormatError, match=message) as caught:
        parse_yaml(text, "names.yaml")
    assert str(caught.value).startswith("names.yaml")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ["{", "a: [x]\n", "- - - -\n", "? ", "&a *a ", "'", "#\n", "a,", '"\\x41" '])
def test_a_file_of_the_greatest_size_takes_seconds_at_most(text, parser, tmp_path):
    path = tmp_path / "names.yaml"
    path.write_text((text * plain_yaml.MAX_FILE)[: plain_yaml.MAX_FILE])
    began = time.process_time()
    with contextlib.suppress(FormatError):
        plain_yaml.read_yaml(path)
    assert time.process_time() - began < 5


def test_a_longer_file_is_not_parsed(tmp_path):
    path = tmp_path / "names.yaml"
    path.write_text("#" * (plain_yaml.MAX_FILE + 1))
    with pytest.raises(FormatError, match=f"must have at most {plain_yaml.MAX_FILE}"):
        plain_yaml.read_yaml(path)
