"""Short names of layers, and the layers that a name means."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from nvdla.util.rounding import is_digits


def layers_meant(layers: Iterable[str | None], name: str) -> set[str]:
    """Return the layers that a name means.

    Args:
        layers: names of layers; the operations of several layers of a model have their names joined by "+".
        name: a whole name or one of the joined names; otherwise the beginning of one, also of its short form.
    """
    known = {layer for layer in layers if layer}
    short = short_layers(known)
    exact = {layer for layer in known if name in (layer, short_layer(layer), short[layer], *layer.split("+"))}
    if exact or not name:
        return exact
    return {
        layer
        for layer in known
        if short[layer].startswith(name)
        or any(word.startswith(name) for part in layer.split("+") for word in (part, short_layer(part)))
    }


def short_layers(layers: Iterable[str | None], unique: bool = True) -> dict[str, str]:
    """Shorten the names of the layers of a network as :func:`short_layer`, and omit the scope of most of them.

    Args:
        layers: names of layers, some several times, None where there is none.
        unique: whether a short name of two layers stays whole.

    Returns:
        The short name of each layer.
    """
    names = list(dict.fromkeys(layer for layer in layers if layer))
    scopes = Counter(scope[0] for scope in (re.match("[^/;+]+/(?=[^;+]*/)", name) for name in names) if scope)
    scope = next((scope for scope, count in scopes.items() if 2 * count > len(names)), "")
    short = {name: "+".join(_without(scope, part) for part in short_layer(name).split("+")) for name in names}
    counts = Counter(short.values())
    return {name: name if unique and counts[text] > 1 else text for name, text in short.items()}


def _without(scope: str, name: str) -> str:
    rest = name.removeprefix(scope)
    return rest if "/" in rest else name


def short_layer(layer: str) -> str:
    """Shorten a name that comes from the path of an ONNX value or of a module of PyTorch, or from the values that
    TFLite's converter has fused.

    "/features/features.0/conv/Conv_output_0+/features/Relu_output_0" is "features.0/conv+features/Relu"; "net/a/Relu6;
    net/a/add;net/a/conv" is "a/Relu6"; "layer1.0.bn2+layer1.0.add" is "layer1.0.bn2+add".
    """
    if "/" in layer:
        return "+".join(dict.fromkeys(map(_short, layer.split("+"))))
    first, *others = layer.split("+")
    modules = [first[: at + 1] for at, mark in enumerate(first) if mark == "."]
    shared = max((path for path in modules if all(name.startswith(path) for name in others)), default="")
    short = [name.removeprefix(shared) for name in others]
    return layer if any(is_digits(name[:1]) for name in short) else "+".join([first, *short])


def _short(name: str) -> str:
    if ";" in name:
        scope, _, rest = name.split(";")[0].partition("/")
        return rest if "/" in rest else f"{scope}/{rest}".rstrip("/")
    if not name.startswith("/"):
        return name
    words = re.sub(r"_output_\d+$", "", name).strip("/").split("/")
    kept = [word for word, after in zip(words, [*words[1:], ""], strict=True) if not after.startswith(f"{word}.")]
    if len(kept) > 1 and kept[-1].lower() == kept[-2].lower():
        kept.pop()
    return "/".join(kept) or name
