"""Protobuf's text format: what it allows is read, everything else is named with its line."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdla import FormatError
from nvdla.compiler.caffe.text import NET, message, parse

INNER = message("Inner", dim="int*", flag="bool=true")
OUTER = message(
    "Outer", "_param", name="string=none", count="uint=7", ratio="float=0.5", mode="RED|GREEN=GREEN", inner=INNER,
    several=[INNER], words="string*", extra="any",
)  # fmt: skip


def read(text):
    return parse(text, OUTER, "net.prototxt")


def test_missing_fields_have_their_defaults():
    net = read("")
    assert (net["name"], net["count"], net["ratio"], net["mode"]) == ("none", 7, 0.5, "GREEN")
    assert (net["several"], net["words"], net["inner"]["flag"], net["inner"]["dim"]) == ([], [], True, [])
    assert "count" not in net


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('name: "a"', "name", "a"),
        ("name: 'it''s'", "name", "its"),
        (r'name: "a\n\x41\101\"\\"', "name", 'a\nAA"\\'),
        ('name: "one " # a remark\n  "two"', "name", "one two"),
        ('name: "# no remark"', "name", "# no remark"),
        ("count: 12", "count", 12),
        ("count: 0x1F", "count", 31),
        ("count: 017", "count", 15),
        ("count : 3 ;", "count", 3),
        ("ratio: -1.5e-3", "ratio", -1.5e-3),
        ("ratio: 2", "ratio", 2.0),
        ("ratio: .5f", "ratio", 0.5),
        ("ratio: - 1", "ratio", -1.0),
        ("mode: RED", "mode", "RED"),
        ("mode: 0", "mode", "RED"),
        ('words: "a" words: "b"', "words", ["a", "b"]),
        ("words: ['a', \"b\"], count: 1", "words", ["a", "b"]),
        ("words: []", "words", []),
    ],
)
def test_a_value_is_read(text, field, value):
    assert read(text)[field] == value


@pytest.mark.parametrize("text", ["inner { dim: 1 dim: 2 }", "inner: < dim: [1, 2] >", "inner{dim:1,dim:2}"])
def test_messages_are_written_in_several_ways(text):
    assert read(text)["inner"]["dim"] == [1, 2]


def test_lists_of_messages_keep_their_order_and_lines():
    found = read("several { dim: 1 }\nseveral: [{ dim: 2 },\n { dim: 3 }]")["several"]
    assert [each["dim"] for each in found] == [[1], [2], [3]]
    assert [each.line for each in found] == [1, 2, 3]


def test_what_does_not_matter_may_be_anything():
    net = read('extra { a: 1 b { c: "}" } d: [ { e: 1 } ] } extra: 3 other_param { x: 1 } count: 2')
    assert net["count"] == 2
    assert net.open == {"other_param": 1}


@pytest.mark.parametrize("word", ["true", "True", "t", "1"])
def test_true_has_four_forms(word):
    assert read(f"inner {{ flag: {word} }}")["inner"]["flag"] is True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n\ncuont: 3", "line 3: Outer: field: must be in the schema, got cuont; did you mean count?"),
        ("count: 3\ncount: 4", "line 2: count: must be given once"),
        ("count: -3", "count: must be 0 to 4294967295, got -3"),
        ("count: 99999999999", "must be 0 to"),
        ("count: 3.0", "count: must be an integer, got 3.0"),
        ("count: 09", "count: must be an integer, got 09"),
        ("count: " + "9" * 5000, "must be a number"),
        ("count: 'x'", "count: must be a number, got x"),
        ("count: \n }", "line 2: count: must have a value, got '}'"),
        ("count 3", "count: must continue with ':', got '3'"),
        ("ratio: nan", "ratio: must be a number, got nan"),
        ("ratio: 1e999", "must be a finite number"),
        ("ratio: 1..2", "must be a finite number"),
        ("mode: GREN", "must be one of RED, GREEN, got GREN; did you mean GREEN?"),
        ("mode: 7", "must be one of RED, GREEN"),
        ("name: x", "name: must be a string in quotes, got x"),
        ("name: -'x'", "name: must have a value, got"),
        ("name: 'x", 'got "\'"'),
        ("name { }", "name: must be string, got a message"),
        ("name: ['a']", "name: must be one value, got a list"),
        ("inner: 3", "inner: must be a message in '{', got '3'"),
        ("inner { dim: 1", "must be a field of Inner or '}', got the end of the file"),
        ("inner { dim: 1 >", "must be a field of Inner or '}', got '>'"),
        ("inner { flag: maybe }", "must be true or false"),
        ("inner { dim: [1 2] }", "list of dim: must continue with ',' or ']', got '2'"),
        ("inner { dim: [1", "list of dim: must continue with ',' or ']', got ''"),
        ("}", "must be a field of Outer or the end, got '}'"),
        ("[a.b]: 3", "must be a field of Outer or the end, got '['"),
        ("count: 1 @", "got '@'"),
        ("extra { a } >", "must be a field of Outer or the end, got '>'"),
        ("extra { a < }", "'}': must close an open bracket"),
        ("extra { a", "end of the file: must follow '}'"),
        ("extra: {" * 1000, "nested messages: must be at most 32"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, said):
    with pytest.raises(FormatError) as raised:
        read(text)
    assert said in str(raised.value)
    assert str(raised.value).startswith("net.prototxt: line ")
    assert "\n" not in str(raised.value)


def test_messages_nest_only_so_deep():
    recursive = message("Deep", inner="any")
    deep = recursive.fields["inner"].__class__("message", schema=recursive)
    recursive.fields["inner"] = deep
    parse("inner {" * 32 + "}" * 32, recursive, "deep")
    with pytest.raises(FormatError, match="must be at most 32 levels deep"):
        parse("inner {" * 33 + "}" * 33, recursive, "deep")


@given(st.text(alphabet="layer {}<>[]:;,\"'#\\\n0129.-+eExname_type\u00e9", max_size=200))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(FormatError):
        parse(text, NET, "any")


def test_an_escape_without_its_digits_is_the_letter():
    assert parse(r'name: "\x, \x41"', NET, "net")["name"] == "x, A"
