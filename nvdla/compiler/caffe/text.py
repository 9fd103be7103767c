"""Protobuf text of Caffe networks, and the fields that it may contain.

Source: Caffe's src/caffe/proto/caffe.proto. A field is written as its type and default: ``"uint=1"``, ``"float=0.75"``,
``"bool=true"``, ``"MAX|AVE=MAX"`` (an enumeration), ``"string"``; a star makes it repeated: ``"uint*"``; a
:class:`Schema` is a message, in a list a repeated one. ``"any"`` is a field without effect when a network only runs:
fillers, learning rates, engines, sources of training data.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from nvdla.errors import FormatError
from nvdla.util.escaping import Document


@dataclass(frozen=True)
class MessageField:
    """``kind``: int, uint, float, bool, string, enum, message or any. ``numbers``: of an enumeration's names."""

    kind: str
    default: object = None
    repeated: bool = False
    numbers: Mapping[str, int] | None = None
    schema: Schema | None = None

    @property
    def inner(self) -> Schema:
        """The fields of a field that is a message."""
        assert self.schema is not None, "only a message has fields"
        return self.schema


@dataclass(frozen=True)
class Schema:
    """A message: its fields by name. ``open_suffix``: other fields with this ending are taken note of, not refused."""

    name: str
    fields: Mapping[str, MessageField]
    open_suffix: str = ""


def message(name: str, open_suffix: str = "", /, **fields: str | Schema | list[Schema] | Mapping[str, int]) -> Schema:
    """A schema from the short forms of its fields."""
    return Schema(name, {field: _field(form) for field, form in fields.items()}, open_suffix)


def _field(form: Any) -> MessageField:
    if isinstance(form, Schema):
        return MessageField("message", schema=form)
    if isinstance(form, list):
        return MessageField("message", schema=form[0], repeated=True)
    if isinstance(form, Mapping):
        return MessageField("enum", numbers=form)
    kind, _, default = form.partition("=")
    repeated, kind = kind.endswith("*"), kind.removesuffix("*")
    if "|" in kind:
        numbers = {name: number for number, name in enumerate(kind.split("|"))}
        return MessageField("enum", default or None, repeated, numbers)
    convert: dict[str, Callable[[str], object]] = {
        "int": int,
        "uint": int,
        "float": float,
        "bool": lambda text: text == "true",
        "string": str,
    }
    return MessageField(kind, convert[kind](default) if default else None, repeated)


SHAPE = message("BlobShape", dim="int*")

#: what the layers of Caffe's types are set by, by field of a layer
PARAMETERS = {
    "batch_norm_param": message(
        "BatchNormParameter", use_global_stats="bool", moving_average_fraction="any", eps="float=1e-5"
    ),
    "bias_param": message("BiasParameter", axis="int=1", num_axes="int=1", filler="any"),
    "concat_param": message("ConcatParameter", axis="int=1", concat_dim="uint=1"),
    "convolution_param": message(
        "ConvolutionParameter",
        num_output="uint",
        bias_term="bool=true",
        pad="uint*",
        kernel_size="uint*",
        stride="uint*",
        dilation="uint*",
        pad_h="uint=0",
        pad_w="uint=0",
        kernel_h="uint",
        kernel_w="uint",
        stride_h="uint=1",
        stride_w="uint=1",
        group="uint=1",
        axis="int=1",
        weight_filler="any",
        bias_filler="any",
        engine="any",
        force_nd_im2col="any",
    ),
    "crop_param": message("CropParameter", axis="int=2", offset="uint*"),
    "dropout_param": message("DropoutParameter", dropout_ratio="any", scale_train="any"),
    "eltwise_param": message("EltwiseParameter", operation="PROD|SUM|MAX=SUM", coeff="float*", stable_prod_grad="any"),
    "elu_param": message("ELUParameter", alpha="float=1"),
    "exp_param": message("ExpParameter", base="float=-1", scale="float=1", shift="float=0"),
    "flatten_param": message("FlattenParameter", axis="int=1", end_axis="int=-1"),
    "inner_product_param": message(
        "InnerProductParameter",
        num_output="uint",
        bias_term="bool=true",
        axis="int=1",
        transpose="bool=false",
        weight_filler="any",
        bias_filler="any",
    ),
    "input_param": message("InputParameter", shape=[SHAPE]),
    "log_param": message("LogParameter", base="float=-1", scale="float=1", shift="float=0"),
    "lrn_param": message(
        "LRNParameter",
        local_size="uint=5",
        alpha="float=1",
        beta="float=0.75",
        k="float=1",
        norm_region="ACROSS_CHANNELS|WITHIN_CHANNEL=ACROSS_CHANNELS",
        engine="any",
    ),
    "memory_data_param": message(
        "MemoryDataParameter", batch_size="uint", channels="uint", height="uint", width="uint"
    ),
    "pooling_param": message(
        "PoolingParameter",
        pool="MAX|AVE|STOCHASTIC=MAX",
        pad="uint*",
        kernel_size="uint*",
        stride="uint*",
        pad_h="uint=0",
        pad_w="uint=0",
        kernel_h="uint",
        kernel_w="uint",
        stride_h="uint=1",
        stride_w="uint=1",
        global_pooling="bool=false",
        round_mode="CEIL|FLOOR=CEIL",
        engine="any",
    ),
    "power_param": message("PowerParameter", power="float=1", scale="float=1", shift="float=0"),
    "prelu_param": message("PReLUParameter", filler="any", channel_shared="bool=false"),
    "relu_param": message("ReLUParameter", negative_slope="float=0", engine="any"),
    "reshape_param": message("ReshapeParameter", shape=SHAPE, axis="int=0", num_axes="int=-1"),
    "scale_param": message(
        "ScaleParameter", axis="int=1", num_axes="int=1", filler="any", bias_term="bool=false", bias_filler="any"
    ),
    "sigmoid_param": message("SigmoidParameter", engine="any"),
    "slice_param": message("SliceParameter", axis="int=1", slice_point="uint*", slice_dim="uint=1"),
    "softmax_param": message("SoftmaxParameter", axis="int=1", engine="any"),
    "tanh_param": message("TanHParameter", engine="any"),
}

_RULE = message(
    "NetStateRule", phase="TRAIN|TEST", min_level="int", max_level="int", stage="string*", not_stage="string*"
)
_STATE = message("NetState", phase="TRAIN|TEST", level="int=0", stage="string*")

LAYER = message(
    "LayerParameter",
    "_param",
    name="string",
    type="string",
    bottom="string*",
    top="string*",
    phase="any",
    loss_weight="any*",
    param="any*",
    blobs="any*",
    propagate_down="any*",
    include=[_RULE],
    exclude=[_RULE],
    **PARAMETERS,
)

#: numbers of the layer types of the old form ``layers { type: CONVOLUTION }``, and their names in the new one
OLD_TYPES = {
    "NONE": (0, ""),
    "ABSVAL": (35, "AbsVal"),
    "ACCURACY": (1, "Accuracy"),
    "ARGMAX": (30, "ArgMax"),
    "BNLL": (2, "BNLL"),
    "CONCAT": (3, "Concat"),
    "CONTRASTIVE_LOSS": (37, "ContrastiveLoss"),
    "CONVOLUTION": (4, "Convolution"),
    "DATA": (5, "Data"),
    "DECONVOLUTION": (39, "Deconvolution"),
    "DROPOUT": (6, "Dropout"),
    "DUMMY_DATA": (32, "DummyData"),
    "ELTWISE": (25, "Eltwise"),
    "EUCLIDEAN_LOSS": (7, "EuclideanLoss"),
    "EXP": (38, "Exp"),
    "FLATTEN": (8, "Flatten"),
    "HDF5_DATA": (9, "HDF5Data"),
    "HDF5_OUTPUT": (10, "HDF5Output"),
    "HINGE_LOSS": (28, "HingeLoss"),
    "IM2COL": (11, "Im2col"),
    "IMAGE_DATA": (12, "ImageData"),
    "INFOGAIN_LOSS": (13, "InfogainLoss"),
    "INNER_PRODUCT": (14, "InnerProduct"),
    "LRN": (15, "LRN"),
    "MEMORY_DATA": (29, "MemoryData"),
    "MULTINOMIAL_LOGISTIC_LOSS": (16, "MultinomialLogisticLoss"),
    "MVN": (34, "MVN"),
    "POOLING": (17, "Pooling"),
    "POWER": (26, "Power"),
    "RELU": (18, "ReLU"),
    "SIGMOID": (19, "Sigmoid"),
    "SIGMOID_CROSS_ENTROPY_LOSS": (27, "SigmoidCrossEntropyLoss"),
    "SILENCE": (36, "Silence"),
    "SLICE": (33, "Slice"),
    "SOFTMAX": (20, "Softmax"),
    "SOFTMAX_LOSS": (21, "SoftmaxWithLoss"),
    "SPLIT": (22, "Split"),
    "TANH": (23, "TanH"),
    "THRESHOLD": (31, "Threshold"),
    "WINDOW_DATA": (24, "WindowData"),
}

OLD_LAYER = message(
    "V1LayerParameter",
    "_param",
    name="string",
    type={name: number for name, (number, _) in OLD_TYPES.items()},
    bottom="string*",
    top="string*",
    include=[_RULE],
    exclude=[_RULE],
    blobs="any*",
    param="any*",
    blob_share_mode="any*",
    blobs_lr="any*",
    weight_decay="any*",
    loss_weight="any*",
    layer="any",
    **PARAMETERS,
)

NET = message(
    "NetParameter",
    name="string",
    input="string*",
    input_shape=[SHAPE],
    input_dim="int*",
    force_backward="any",
    state=_STATE,
    debug_info="any",
    layer=[LAYER],
    layers=[OLD_LAYER],
)


MAX_DEPTH = 32
MAX_NUMBER = 64  # characters
MAX_COMPARED = 1000  # words that a hint is chosen from

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+|\#[^\n]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<number>[0-9.][\w.]*(?:(?<=[eE])[+-]\w*)?)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<mark>[-{}<>\[\]:;,])""",
    re.VERBOSE | re.ASCII,
)
_INTEGER = re.compile(r"0[xX][0-9a-fA-F]+\Z|0[0-7]*\Z|[1-9][0-9]*\Z")
_REAL = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?\Z")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_RANGES = {"int": (-(1 << 63), (1 << 63) - 1), "uint": (0, (1 << 32) - 1)}
_TRUE, _FALSE = ("true", "True", "t", "1"), ("false", "False", "f", "0")
_CLOSING = {"{": "}", "<": ">"}


class TextMessage:
    """One message as read. ``message["field"]``: its value, its default, or a list where it may be repeated.

    ``line``: where it began. ``open``: accepted fields that are not in the schema, with their lines.
    """

    def __init__(self, schema: Schema, line: int = 0) -> None:
        self.schema, self.line = schema, line
        self.open: dict[str, int] = {}
        self._values: Document = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        field = self.schema.fields[name]
        if name in self._values:
            return self._values[name]
        if field.repeated:
            return []
        return TextMessage(field.inner, self.line) if field.kind == "message" else field.default

    def put(self, name: str, value: object) -> None:
        """Set a field, or append to one that is repeated."""
        if self.schema.fields[name].repeated:
            self._values.setdefault(name, []).append(value)
        else:
            self._values[name] = value


def parse(text: str, schema: Schema, name: str) -> TextMessage:
    """The message that a text holds. Raises FormatError that names file, line and field."""
    return _Parser(text, name).whole(schema)


class _Parser:
    """Recursive descent over tokens; each token is looked at once."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name
        self._line, self._counted = 1, 0
        self._tokens = self._scan()
        self._kind, self._word, self._at = next(self._tokens)

    def whole(self, schema: Schema) -> TextMessage:
        return self._fields(TextMessage(schema, 1), "", 0)

    def _scan(self) -> Iterator[tuple[str, str, int]]:
        place, text = 0, self._text
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                self._at = place
                self._fail(f"{text[place]!r} does not belong here")
            if token.lastgroup is not None and token.lastgroup != "space":
                yield token.lastgroup, token[0], place
            place = token.end()
        while True:
            yield "end", "", len(text)

    def _fail(self, why: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise FormatError(f"{self._name}: line {line}: {one_line(why)}")

    def _next(self) -> str:
        word = self._word
        self._kind, self._word, self._at = next(self._tokens)
        return word

    def _here(self) -> int:
        """The line of the current token; lines are counted on from the last call."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _fields(self, into: TextMessage, closing: str, depth: int) -> TextMessage:
        if depth > MAX_DEPTH:
            self._fail(f"messages are nested deeper than {MAX_DEPTH}")
        while self._word != closing or self._kind not in ("mark", "end"):
            if self._kind != "name":
                what = "the file ends" if self._kind == "end" else f"{self._word!r} is found"
                end = repr(closing) if closing else "the end"
                self._fail(f"{what} where a field of {into.schema.name} or {end} is expected")
            self._field(into, depth)
        if closing:
            self._next()
        return into

    def _field(self, into: TextMessage, depth: int) -> None:
        name, field = self._word, into.schema.fields.get(self._word)
        if field is None:
            if not (into.schema.open_suffix and name.endswith(into.schema.open_suffix)):
                self._fail(f"{into.schema.name} has no field {name}{near(name, into.schema.fields)}")
            into.open[name] = self._here()
            field = MessageField("any", repeated=True)
        elif name in into and not field.repeated and field.kind != "any":
            self._fail(f"{name} is given twice")
        self._next()
        colon = self._word == ":" and self._kind == "mark"
        if colon:
            self._next()
        for value in self._values(name, field, colon, depth):
            if field.kind != "any":
                into.put(name, value)
        if self._kind == "mark" and self._word in ",;":
            self._next()

    def _values(self, name: str, field: MessageField, colon: bool, depth: int) -> Iterator[object]:
        """One value, or those of a list in brackets."""
        if not (self._kind == "mark" and self._word == "["):
            yield self._value(name, field, colon, depth)
            return
        if not field.repeated and field.kind != "any":
            self._fail(f"{name} is not repeated, so it cannot be a list")
        self._next()
        while self._word != "]" or self._kind != "mark":
            yield self._value(name, field, colon, depth)
            if self._word == "," and self._kind == "mark":
                self._next()
            elif self._word != "]":
                self._fail(f"list of {name}: must continue with ',' or ']', got {self._word!r}")
        self._next()

    def _value(self, name: str, field: MessageField, colon: bool, depth: int) -> Any:
        opens = self._kind == "mark" and self._word in _CLOSING
        if field.kind == "any":
            return self._skip(depth) if opens else self._scalar(name, colon)
        if field.kind == "message":
            if not opens:
                self._fail(f"{name}: must be a message in '{{', got {self._word!r}")
            line = self._here()
            return self._fields(TextMessage(field.inner, line), _CLOSING[self._next()], depth + 1)
        if opens:
            self._fail(f"{name}: must be {field.kind}, got a message")
        at = self._at
        sign, kind, word = self._scalar(name, colon)
        after, self._at = self._at, at  # what is wrong with the value is said of its line
        value = self._typed(name, field, sign, kind, word)
        self._at = after
        return value

    def _skip(self, depth: int) -> None:
        """A message whose content does not matter; brackets must match."""
        waiting = [_CLOSING[self._next()]]
        while waiting:
            if depth + len(waiting) > MAX_DEPTH:
                self._fail(f"messages are nested deeper than {MAX_DEPTH}")
            if self._kind == "end":
                self._fail(f"the file ends where {waiting[-1]!r} is expected")
            kind, word = self._kind, self._next()
            if kind != "mark":
                continue
            if word in _CLOSING:
                waiting.append(_CLOSING[word])
            elif word in "}>" and word != waiting.pop():
                self._fail(f"{word!r}: must close an open bracket")

    def _scalar(self, name: str, colon: bool) -> tuple[str, str, str]:
        """Sign, kind of token and word; strings that follow each other are one."""
        if not colon:
            self._fail(f"{name}: ':' is expected before the value, not {self._word!r}")
        sign = "-" if self._kind == "mark" and self._word == "-" else ""
        if sign:
            self._next()
        kind = self._kind
        if kind not in ("name", "number", "string") or (sign and kind == "string"):
            what = "the file ends" if kind == "end" else f"{self._word!r} is found"
            self._fail(f"{what} where the value of {name} is expected")
        if kind != "string":
            return sign, kind, self._next()
        pieces = []
        while self._kind == "string":
            pieces.append(_ESCAPE.sub(_unescaped, self._next()[1:-1]))
        return sign, kind, "".join(pieces)

    def _typed(self, name: str, field: MessageField, sign: str, kind: str, word: str) -> Any:
        shown = f"{sign}{word}"[:MAX_NUMBER]
        if field.kind == "string":
            if kind != "string":
                self._fail(f"{name}: must be a string in quotes, got {shown}")
            return word
        if field.kind == "bool":
            if sign or kind == "string" or word not in _TRUE + _FALSE:
                self._fail(f"{name}: must be true or false, got {shown}")
            return word in _TRUE
        if field.kind == "enum":
            return self._enumerated(name, field, kind, shown)
        if kind != "number" or len(word) > MAX_NUMBER:
            self._fail(f"{name}: must be a number, got {shown}")
        return self._integer(name, field, shown) if field.kind in _RANGES else self._real(name, shown)

    def _enumerated(self, name: str, field: MessageField, kind: str, shown: str) -> str:
        """The name; a number stands for one, too."""
        known = field.numbers or {}
        if kind == "name" and shown in known:
            return shown
        for word, number in known.items():
            if kind == "number" and shown == str(number):
                return word
        return self._fail(f"{name}: must be one of {', '.join(known)}, got {shown}{near(shown, known)}")

    def _integer(self, name: str, field: MessageField, shown: str) -> int:
        digits = shown.removeprefix("-")
        if not _INTEGER.match(digits):
            self._fail(f"{name}: must be an integer, got {shown}")
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
        value = int(digits, base) * (-1 if shown[0] == "-" else 1)
        low, high = _RANGES[field.kind]
        if not low <= value <= high:
            self._fail(f"{name}: must be {low} to {high}, got {shown}")
        return value

    def _real(self, name: str, shown: str) -> float:
        digits = shown.removeprefix("-")
        if _INTEGER.match(digits) and digits[:2] in ("0x", "0X"):
            return float(int(shown, 16))
        value = float(shown.rstrip("fF")) if _REAL.match(digits) else math.nan
        if not math.isfinite(value):
            self._fail(f"{name}: must be a finite number, got {shown}")
        return value


def one_line(text: str) -> str:
    """Text from a file for a message: without line ends and what else would steer a terminal."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)


def near(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that was perhaps meant."""
    matches = difflib.get_close_matches(word[:MAX_NUMBER], islice(known, MAX_COMPARED), n=1, cutoff=0.7)
    return f"; did you mean {matches[0]}?" if matches else ""


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return _ESCAPES.get(code, code)
