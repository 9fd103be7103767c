"""Fuzz target: TVM model libraries, the archive and what is in it."""

from __future__ import annotations

from nvdla.errors import FormatError
from nvdla.interop.containers.registry import Source
from nvdla.interop.containers.tvm import mlf, mlf_create, mlf_verify, tar
from nvdla.interop.containers.tvm_format import LibraryFormat


def one_input(data: bytes) -> None:
    """The bytes as an archive, and as each of the files inside one: opened and verified, or FormatError."""
    try:
        container = LibraryFormat().open(Source.of(data))
        container.info()
        container.rows()
        container.verify(strict=True)
        if container.library.repack() != data:
            raise RuntimeError("a model library did not come back byte for byte")
        for module in container.library.modules:
            mlf_create.unpack(container.library, module)
    except FormatError:
        pass
    for path in (mlf.METADATA, "codegen/host/src/net_lib0.c"):
        try:
            mlf_verify.verify(
                mlf.read(
                    memoryview(
                        tar.write(
                            [
                                tar.TarMember("./metadata.json", "file", memoryview(_METADATA)),
                                tar.TarMember(f"./{path}", "file", memoryview(data)),
                            ]
                        )
                    )
                )
            )
        except FormatError:
            continue
    try:
        mlf.read_graph(data, "graph")
    except FormatError:
        return


_METADATA = (
    b'{"version": 7, "modules": {"net": {"model_name": "net", "executors": ["aot"], "memory": {"functions": {}}}}}'
)
