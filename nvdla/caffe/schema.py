"""The messages of Caffe's text format, declared: names of fields, their types and defaults.

Source: Caffe's src/caffe/proto/caffe.proto. A field is written as its type and default: ``"uint=1"``, ``"float=0.75"``,
``"bool=true"``, ``"MAX|AVE=MAX"`` (an enumeration), ``"string"``; a star makes it repeated: ``"uint*"``; a
:class:`Schema` is a message, in a list a repeated one. ``"any"`` is whatever does not matter when a network only runs:
fillers, learning rates, engines, sources of training data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MessageField:
    """``kind``: int, uint, float, bool, string, enum, message or any. ``numbers``: of an enumeration's names."""

    kind: str
    default: Any = None
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
    convert: dict[str, Callable[[str], Any]] = {
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
