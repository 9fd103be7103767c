"""One small file for each class of attack, and what is said about it.

    python tests/support/attack_files.py      writes them into tests/attacks/files

``ATTACKS`` maps a file's name to (how it is read, its bytes, a regular expression of the message). ``load`` files are
refused by ``nvdla.load``, ``run`` files by ``nvdla.Runtime`` or its first run.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

FILES = Path(__file__).resolve().parents[1] / "attacks" / "files"

from nvdla.loadable import Loadable, to_bytes  # noqa: E402
from nvdla.loadable.descriptors import NEW  # noqa: E402
from nvdla.loadable.descriptors.enums import Event, OpType  # noqa: E402
from nvdla.loadable.enums import MemoryFlags  # noqa: E402
from support.handmade import INPUT, OUTPUT, WORK, Op, chain, copy, network, pool  # noqa: E402

Attack = tuple[str, Callable[[], bytes], str]
ATTACKS: dict[str, Attack] = {}


def attack(name: str, way: str, said: str) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    def keep(make: Callable[[], bytes]) -> Callable[[], bytes]:
        ATTACKS[name] = (way, make, said)
        return make

    return keep


# ---- the container of a loadable


def good() -> bytes:
    return to_bytes(network(chain(2)))


def patched(data: bytes, at: int, code: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(code, changed, at, value)
    return bytes(changed)


def root_field(data: bytes, slot: int) -> int:
    """Where the vector of a field of the root table begins (its length)."""
    root = struct.unpack_from("<I", data, 0)[0]
    vtable = root - struct.unpack_from("<i", data, root)[0]
    at = root + struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0]
    return at + struct.unpack_from("<I", data, at)[0]


def changed(table: str, index: int, **values: object) -> bytes:
    """The good loadable with fields of one entry changed."""
    model = network(chain(2))
    entries = list(getattr(model, table))
    entries[index] = dataclasses.replace(entries[index], **values)
    return to_bytes(dataclasses.replace(model, **{table: tuple(entries)}))


attack("empty.nvdla", "load", "got an empty file")(lambda: b"")
attack("text.nvdla", "load", "got a text file")(lambda: b"This is no loadable, but a text.\n")
attack("root_outside.nvdla", "load", "root offset at byte 0: offset: must be .*, got 4294967295")(
    lambda: patched(good(), 0, "<I", 0xFFFFFFFF)
)
attack("cut.nvdla", "load", r"must be at most|must be between|file size")(lambda: good()[: len(good()) // 2])


@attack("vtable_outside.nvdla", "load", "vtable position: must be .*, got -")
def vtable_outside() -> bytes:
    data = good()
    return patched(data, struct.unpack_from("<I", data, 0)[0], "<i", 1 << 30)


@attack("vector_of_4_billion.nvdla", "load", r"vector length: must be at most \d+.*, got 4294967295")
def long_vector() -> bytes:
    data = good()
    return patched(data, root_field(data, 2), "<I", 0xFFFFFFFF)


@attack("string_without_end.nvdla", "load", "byte after string: must|string length: must")
def endless_string() -> bytes:
    data = good()
    at = data.index(b"task-0-op_list\0")
    return patched(data, at + 14, "<B", 0x41)


@attack("name_no_utf8.nvdla", "load", "must be valid UTF-8")
def no_utf8() -> bytes:
    data = good()
    return patched(data, data.index(b"task-0-op_list\0"), "<B", 0xFF)


@attack("name_steers_terminal.nvdla", "load", r"tensor_desc_list\[0\].name: must be printable, got 'da\\x1b\[2Jta'")
def escape_sequence() -> bytes:
    return changed("tensors", 0, name="da\x1b[2Jta")


def field(data: bytes, table: int, slot: int) -> int:
    """Where a field of a table lies."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    return table + struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0]


@attack("shared_strings.nvdla", "load", "data read through shared offsets: must be at most 8 times")
def shared_strings() -> bytes:
    """5000 offsets to one and the same name of 4096 bytes: 20 MB of text in 24 KB."""
    count = 5000
    data = bytearray(good())
    data += bytes(-len(data) % 4)
    start = len(data)
    text = start + 4 + 4 * count
    data += struct.pack("<I", count)
    data += b"".join(struct.pack("<I", text - (start + 4 + 4 * index)) for index in range(count))
    data += struct.pack("<I", 4096) + b"x" * 4096 + b"\0"
    entry = root_field(bytes(data), 2) + 4 + 4 * 3
    entry += struct.unpack_from("<I", data, entry)[0]
    contents = field(bytes(data), entry, 5)
    struct.pack_into("<I", data, contents, start - contents)
    return bytes(data)


attack("two_ids.nvdla", "load", "memory_list.*must be unique")(lambda: changed("memories", 1, id=0))
attack("memory_without_size.nvdla", "load", "size .*: must be at least 1.*, got 0")(
    lambda: changed("memories", 2, size=0)
)
attack("memory_of_8_exabytes.nvdla", "run", "must have at most 4294967296 bytes together, got 9223372036854")(
    lambda: changed("memories", 2, size=(1 << 63) - 1)
)
attack("alignment_of_2_gigabytes.nvdla", "load", "alignment .*must be 0 or a power of two up to 16777216")(
    lambda: changed("memories", 2, alignment=1 << 31)
)
attack("contents_behind_the_end.nvdla", "load", "offsets.*must be")(
    lambda: changed("memories", 3, offsets=((1 << 64) - 16,))
)
attack("blob_does_not_exist.nvdla", "load", "no blob has this name|contents")(
    lambda: changed("memories", 3, contents=("elsewhere",))
)
attack("address_wraps_around.nvdla", "load", "offset .*: must be.*, got 18446744073709551615")(
    lambda: changed("addresses", 2, offset=(1 << 64) - 1)
)
attack("address_without_memory.nvdla", "load", "mem_id .*must be the id of an existing memory, got 999")(
    lambda: changed("addresses", 2, mem_id=999)
)
attack(
    "task_without_address.nvdla",
    "load",
    r"task_list\[0\].address_list\[1\]: must be the id of an existing address, got 77",
)(lambda: changed("tasks", 0, address_list=(3, 77)))
attack("tensor_behind_memory.nvdla", "load", "must be at most 256 .*, got 18446744073709551871")(
    lambda: changed("tensors", 0, offset=(1 << 64) - 1)
)
attack("tensor_without_height.nvdla", "load", r"tensor_desc_list\[0\].h .*: must be at least 1.*, got 0")(
    lambda: changed("tensors", 0, h=0)
)
attack("tensor_of_strides_zero.nvdla", "run", "must have at most 256 bytes .its memory., got .* in whole atoms")(
    lambda: changed("tensors", 0, c=1 << 30, h=1 << 15, w=1, strides=(1, 0, 0, 0, 0, 0, 0, 0))
)
attack("bound_twice.nvdla", "load", r"bind_id .*: must be 1.*, got 0")(
    lambda: changed("memories", 2, flags=MemoryFlags.ALLOC | MemoryFlags.INPUT)
)


# ---- descriptors


def descriptors(ops: list[Op] | None = None, **options: object) -> bytes:
    return to_bytes(network(ops or chain(2), **options))


def one(op: Op, **options: object) -> bytes:
    return descriptors([op], **options)


def filled(make: Callable[..., Callable], **fields: object) -> Callable:
    """A fill function and further fields by path: ``src_data__address``."""

    def fill(op: object, surface: object) -> None:
        make((INPUT, 0), (OUTPUT, 0))(op, surface)
        for path, value in fields.items():
            owner, *rest = path.split("__")
            target: object = op if hasattr(op, owner) else surface
            for step in [owner, *rest][:-1]:
                target = getattr(target, step)
            setattr(target, [owner, *rest][-1], value)

    return fill


attack("operations_behind_list.nvdla", "run", r"OperationContainer\[65535\].*must end within memory")(
    lambda: descriptors(num_operations=65535)
)
attack("too_many_rois.nvdla", "run", r"num_operations \* num_rois.*: must be at most 65536.*, got 131070")(
    lambda: descriptors(num_operations=2, num_rois=65535)
)
attack("no_rois.nvdla", "run", "num_rois .*: must be at least 1, got 0")(lambda: descriptors(num_rois=0))
attack("list_index_outside.nvdla", "run", "operation_desc_index at byte .*: must be 0 .. 8.*, got 99")(
    lambda: descriptors(operation_desc_index=99)
)
attack("network_index_negative.nvdla", "run", "dependency_graph_index at byte .*: must be 0 .. 8.*, got -2")(
    lambda: descriptors(dependency_graph_index=-2)
)
attack("luts_behind_list.nvdla", "run", r"LutParam\[4000\].*must end within memory")(lambda: descriptors(num_luts=4000))
attack("lut_index_outside.nvdla", "run", "lut_index at byte .*: must be.*, got 9")(
    lambda: one(Op(OpType.SDP, filled(copy, lut_index=9)))
)
attack("statistics_outside.nvdla", "run", "stat_list_index: must be 0 .. 8.*, got 55")(
    lambda: descriptors(stat_list_index=55)
)
attack("dynamic_roi_outside.nvdla", "run", "roi_array_index.*: must be 0 .. 8 .*, got 66")(
    lambda: descriptors(dynamic_roi=1, roi_array_index=66, input_layer=0)
)
attack("head_outside.nvdla", "run", r"op_head.*: must be.*, got 7")(
    lambda: descriptors(op_head=[-1, -1, 7, -1, -1, -1])
)


@attack("type_unknown.nvdla", "run", "type of operation 0: must be 2, got 17")
def unknown_type() -> bytes:
    model = network(chain(2))
    graph = bytearray(model.blob("task-0-dep_graph").data)
    graph[NEW.CommonOpDesc.op_type.offset] = 17
    return to_bytes(with_blob(model, "task-0-dep_graph", bytes(graph)))


def with_blob(model: Loadable, name: str, data: bytes) -> Loadable:
    blobs = tuple(dataclasses.replace(each, data=data) if each.name == name else each for each in model.blobs)
    return dataclasses.replace(model, blobs=blobs)


@attack("consumer_outside.nvdla", "run", r"consumers\[2\] at byte 16: index: must be -1 .. 1 .*, got 500")
def consumer_outside() -> bytes:
    ops = chain(2)
    ops[0].consumers[OpType.SDP] = (500, Event.OP_COMPLETED)
    return descriptors(ops, op_head=[-1, -1, 0, -1, -1, -1])


@attack("waits_for_itself.nvdla", "run", "can make no progress, 2 of 2 operations are not done")
def deadlock() -> bytes:
    ops = chain(2)
    ops[0].waits = 1
    return descriptors(ops)


@attack("never_ends.nvdla", "run", "must be queued once.*the graph never ends")
def endless() -> bytes:
    ops = chain(2)
    ops[1].consumers[OpType.SDP] = (0, Event.OP_COMPLETED)
    return descriptors(ops, op_head=[-1, -1, 0, -1, -1, -1])


def surface(said: str, name: str, **fields: object) -> None:
    attack(name, "run", said)(lambda: one(Op(OpType.SDP, filled(copy, **fields))))


surface("src_data.address .*: must be.*, got 300", "surface_address_outside.nvdla", src_data__address=300)
surface(
    "ends? (at|outside)|outside region|must be one atom .* got 1048576",
    "surface_behind_region.nvdla",
    dst_data__surf_stride=1 << 20,
    src_data__channel=4096,
    dst_data__channel=4096,
)
surface("src_data width: must be 1 to 8192, got 0", "width_zero.nvdla", src_data__width=0)
surface("memory type 7", "memory_type_unknown.nvdla", src_data__type=7)
surface("(in|src)_precision: must be .*, got 9", "precision_unknown.nvdla", src_precision=9)
surface(
    "cube of .* must have at most 67108864 bytes in",
    "strides_of_zero_huge_cube.nvdla",
    src_data__width=512,
    dst_data__width=512,
    **{f"{cube}__{side}": 8192 for cube in ("src_data", "dst_data") for side in ("height", "channel")},
    **{f"{cube}__{stride}": 0 for cube in ("src_data", "dst_data") for stride in ("line_stride", "surf_stride")},
)


def pooling(said: str, name: str, **fields: object) -> None:
    attack(name, "run", said)(lambda: one(Op(OpType.PDP, filled(pool, **fields))))


pooling("stride_x: must be 1 to 8, got 0", "pooling_stride_zero.nvdla", stride_x=0)
pooling("pool_width .*: must be .*, got 200", "pooling_kernel_200.nvdla", pool_width=200)
pooling("split_num: must be 1 to 64, got 0", "pooling_split_zero.nvdla", split_num=0)


def convolution(**fields: int) -> Callable:
    """A 1 x 1 x 8 convolution on the fly to SDP, as far as it takes to be refused."""

    def fill(op: object, surface: object) -> None:
        op.batch = op.conv_stride_x = op.conv_stride_y = op.dilation_x = op.dilation_y = 1
        op.data_format, op.out_cvt.scale = 36, 1
        op.kernel_width_csc = op.kernel_height_csc = 1
        op.kernel_channel_csc = op.input_width_csc = op.input_height_csc = op.input_channel_csc = 8
        for cube, address in ((surface.src_data, INPUT), (surface.weight_data, WORK), (surface.dst_data, -1)):
            cube.address, cube.width, cube.height, cube.channel = address, 1, 1, 8
            cube.size, cube.line_stride, cube.surf_stride = 64, 8, 8
        surface.dst_data.type = 2
        for path, value in fields.items():
            setattr(op, path, value)
        if "kernel_width_csc" in fields:
            for side in ("width", "height", "channel"):
                setattr(surface.dst_data, side, 8192)

    return fill


attack("convolution_stride_zero.nvdla", "run", "conv_stride_x: must be at least 1, got 0")(
    lambda: one(Op(OpType.CONV, convolution(conv_stride_x=0)))
)
attack("convolution_dilation_zero.nvdla", "run", "dilation_y: must be at least 1, got 0")(
    lambda: one(Op(OpType.CONV, convolution(dilation_y=0)))
)
attack("convolution_of_years.nvdla", "run", r"multiplications: must be at most 1e\+13")(
    lambda: one(Op(OpType.CONV, convolution(kernel_width_csc=32, kernel_height_csc=32, kernel_channel_csc=8192)))
)


# ---- traces: their folder holds "outside.dat" one level up

attack("climbs_out.cfg", "trace", r"climbs_out.cfg:1: file '\.\./outside.dat': must be in the directory of the trace")(
    lambda: b'mem_load(pri_mem, 0x80000000, "../outside.dat");\n'
)
attack("absolute.cfg", "trace", "file '/etc/passwd': must be in the directory of the trace")(
    lambda: b'mem_load(pri_mem, 0x80000000, "/etc/passwd");\n'
)
attack("climbs_out.txn", "trace", r"file 'a/\.\./\.\./outside.dat': must be in the directory of the trace")(
    lambda: b"load_mem 0x80000000 0x10 a/../../outside.dat\n"
)
attack("memory_of_8_exabytes.cfg", "trace", "must be at most 4294967296 bytes, got .* in 1 ranges")(
    lambda: b"mem_init(pri_mem, 0x0, 0x7fffffffffffffff, ALL_ZERO);\n"
)
attack("beyond_64_bits.cfg", "trace", "must end within 64-bit addresses")(
    lambda: b"mem_init(pri_mem, 0xfffffffffffffff0, 0x1000, ALL_ZERO);\n"
)
attack("padding_of_gigabytes.cfg", "trace", "must have at most 1099511627776 bytes .*, got 1")(
    lambda: b'mem_load(pri_mem, 0x80000000, "huge_packet.dat");\n'
)
attack("spaces_without_end.cfg", "trace", "is not a command: must be name")(
    lambda: b"reg_write(" + b" " * 20_000 + b"x\n"
)
attack("unknown_register.cfg", "trace", "has no register 'D_NOTHING'")(
    lambda: b"reg_write(NVDLA_PDP.D_NOTHING_0, 0);\n"
)
attack("number_of_80_digits.cfg", "trace", "must be an unsigned number of at most 32 bits")(
    lambda: b"reg_write(NVDLA_PDP.S_POINTER_0, 0x" + b"f" * 400 + b");\n"
)
attack("queue_overflows.cfg", "trace:nv_full", "deadlock: more than 20 BDMA transfers queued")(
    lambda: b"".join(b"reg_write(NVDLA_BDMA.CFG_OP_0, 0x1);\n" for _ in range(21))
)
attack("huge_packet.dat", "with padding_of_gigabytes.cfg", "")(
    lambda: b"{offset:0x0, size:0x10000000000, payload:0x01}\n"
)


# ---- tensors


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


attack("pickle.npy", "tensor", "not a number type|objects are never read")(
    lambda: npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", pickle.dumps(["x"], protocol=4))
)
attack("shape_of_exabytes.npy", "tensor", "elements of 8 bytes.*, got 0")(
    lambda: npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967295, 4294967295), }")
)
attack("header_calls.npy", "tensor", "must be a dictionary with descr")(
    lambda: npy("{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (1,), }")
)
attack("header_nested.npy", "tensor", "must be a dictionary with descr|no tuple")(lambda: npy("(" * 5000))
attack("archive.npy", "tensor", "x93NUMPY at byte 0 is missing")(lambda: zipped("a.npy", npy("{}")))
attack("cube_of_exabytes.dimg", "tensor", "must have .* bytes, got 0")(
    lambda: struct.pack("<4sI7I", b"DIMG", 0, 37, 1 << 31, 1 << 31, 1 << 31, 0, 0, 0)
)
attack("empty_and_endless.dimg", "tensor", "must have 0 bytes, got 0")(
    lambda: struct.pack("<4sI7I", b"DIMG", 0, 44, 0, (1 << 32) - 1, (1 << 32) - 1, 0, 0, 0)
)
attack("format_unknown.dimg", "tensor", "surface format: must be .*, got 99")(
    lambda: struct.pack("<4sI7I", b"DIMG", 0, 99, 1, 1, 1, 0, 0, 0)
)
attack("postscript.png", "tensor", "not an image that can be read")(
    lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 4\n%%EndComments\n"
)


@attack("picture_of_gigapixels.png", "tensor", "pixels are more than the limit|cannot be read")
def huge_picture() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1 << 20, 1 << 20, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(64), 0)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


# ---- neighbouring containers


def zipped(name: str, data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return stream.getvalue()


@attack("bomb.npz", "container", "unpacked size: must be possible|must be a .npz archive")
def zip_bomb() -> bytes:
    data = bytearray(zipped("a.npy", bytes(100)))
    for at in (22, data.index(b"PK\1\2") + 24):  # both headers say 4 GiB
        struct.pack_into("<I", data, at, 0xFFFFFF00)
    return bytes(data)


attack("header_behind_the_end.safetensors", "container", "header length: must be at most 2, got 99999999")(
    lambda: struct.pack("<Q", 99_999_999) + b"{}"
)
attack("nested.safetensors", "container", "header: must be JSON")(
    lambda: struct.pack("<Q", 10_002) + b"{" + b"[" * 10_000 + b"}"
)
attack("tensors_without_end.gguf", "container", "count: must fit the rest of the file")(
    lambda: b"GGUF" + struct.pack("<IQQ", 3, (1 << 64) - 1, 0)
)


# ---- Caffe networks


def protobuf(number: int, payload: bytes) -> bytes:
    """A length-delimited field; both numbers below 128 after they are shifted."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def blob_of_shape(*sizes: int) -> bytes:
    """A .caffemodel of one layer with an empty blob that claims a shape."""
    dims = b"".join(varint(size & (1 << 64) - 1) for size in sizes)
    return protobuf(100, protobuf(1, b"a") + protobuf(7, protobuf(7, protobuf(1, dims))))


def pooled(parameters: str) -> bytes:
    return (
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 1 dim: 8 dim: 8 } } }\n'
        f'layer {{ name: "p" type: "Pooling" bottom: "data" top: "p" pooling_param {{ {parameters} }} }}\n'
    ).encode()


attack("pool_of_billions.prototxt", "caffe", "layer p .Pooling.: tensors: must have at most .* elements together")(
    lambda: pooled("kernel_size: 4294967295 pad: 4294967294")
)
attack("pool_of_a_line.prototxt", "caffe", "height and width of the result: must be at most 8192")(
    lambda: pooled("kernel_h: 1 kernel_w: 100000 pad_h: 0 pad_w: 99999")
)
attack("pool_stride_zero.prototxt", "caffe", "kernel and stride: must be at least 1, got .* stride 0x0")(
    lambda: pooled("kernel_size: 2 stride: 0")
)
attack("nested.prototxt", "caffe", "nested messages: must be at most 32")(
    lambda: b"layer { unknown_param " + b"{ a " * 5000
)
attack("number_of_5000_digits.prototxt", "caffe", "must be a number")(lambda: pooled("kernel_size: " + "9" * 5000))
attack("unknown_weights.prototxt", "caffe", "weights: must be given")(
    lambda: (
        pooled("kernel_size: 2")
        + b'layer { name: "c" type: "Convolution" bottom: "p" top: "c" convolution_param { num_output: 4294967295'
        b" kernel_size: 4294967295 pad: 4294967295 } }"
    )
)
attack("length_of_exabytes.caffemodel", "caffe", "size: must be at most . bytes")(
    lambda: varint(100 << 3 | 2) + varint((1 << 63) - 1)
)
attack("number_without_end.caffemodel", "caffe", "number: must have at most 10 bytes")(lambda: b"\xff" * 64)
attack("blob_of_negative_size.caffemodel", "caffe", "must not be negative")(lambda: blob_of_shape(-1, 4))
attack("blob_of_exabytes.caffemodel", "caffe", "must have 0 elements .the data.")(
    lambda: blob_of_shape(1 << 63 - 1, 1 << 63 - 1, 4)
)
attack("blob_of_nothing_times_exabytes.caffemodel", "caffe", "holds no|shape")(
    lambda: blob_of_shape(0, (1 << 62), (1 << 62))
)


def main() -> None:
    FILES.mkdir(exist_ok=True)
    for name, (_, make, _) in ATTACKS.items():
        FILES.joinpath(name).write_bytes(make())
    print(f"{len(ATTACKS)} files, {sum(path.stat().st_size for path in FILES.iterdir())} bytes")


if __name__ == "__main__":
    main()
