"""NVDLA loadables as a container of parameters: out of them, and back into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar

from nvdla.errors import FormatError, NvdlaError
from nvdla.interop.containers.registry import Container, FileFinding, Format, Options, Severity, Source, register
from nvdla.loadable import load as load_loadable
from nvdla.tensors.parameters import Parameter
from nvdla.util.escaping import Document
from nvdla.util.files import write_data

if TYPE_CHECKING:
    from nvdla.program.parameters import LoadableParameters


class LoadableContainer(Container):
    """An open loadable; ``loadable`` is the model, ``decoded`` its parameters."""

    def __init__(self, format: LoadableFormat, source: Source, config: str) -> None:

        self.format = format
        self.source = source
        self.config = config
        try:
            self.loadable = load_loadable(source.data)
        except NvdlaError as error:
            raise FormatError(f"{source.name}: {error}") from None

    @cached_property
    def decoded(self) -> LoadableParameters:
        """The parameters. FormatError where descriptors cannot be decoded."""
        from nvdla.program.parameters import LoadableParameters

        try:
            return LoadableParameters(self.loadable, self.config)
        except NvdlaError as error:
            raise FormatError(f"{self.source.name}: {error}") from None

    def info(self) -> Document:
        """Return the data of `nvdla container info`."""
        decoded = self.decoded
        return {
            "version": str(self.loadable.version),
            "tasks": len(self.loadable.tasks),
            "blobs": len(self.loadable.blobs),
            "parameters": len(decoded.slots),
            "configuration": decoded.config.name,
            "configuration_reason": decoded.reason,
        }

    def rows(self) -> list[Document]:
        """One row an entry, for `nvdla container list`."""
        return [
            {
                "name": slot.name,
                "kind": slot.metadata["kind"],
                "dtype": slot.dtype,
                "shape": list(slot.shape),
                "layout": slot.layout,
                "blob": slot.blob,
                "offset": slot.offset,
                "length": slot.length,
                "metadata": dict(slot.metadata),
            }
            for slot in self.decoded.slots
        ]

    def verify(self, strict: bool = False) -> list[FileFinding]:
        """The container was verified on opening; here its descriptors and parameters."""
        try:
            self.parameters()
        except FormatError as error:
            return [FileFinding(Severity.ERROR, "descriptors", None, str(error))]
        return []

    def load_parameters(self) -> list[Parameter]:
        """Every entry as a parameter."""
        try:
            return self.decoded.parameters()
        except NvdlaError as error:
            raise FormatError(f"{self.source.name}: {error}") from None

    def convert_to(self, file: IO[bytes], target: Format, options: Options | None = None) -> None:
        """Write the contents as a file of another format. Raises FormatError if it cannot hold them."""
        if target is self.format and not options:
            write_data(file, self.source.data)
            return
        if target.name == "tvm-mlf":
            target.build(file, [self.source], options)
            return
        super().convert_to(file, target, options)


@register
class LoadableFormat(Format):
    """NVDLA's own container, for its parameters."""

    name = "loadable"
    title = "NVDLA loadable"
    suffixes = (".nvdla", ".loadable")
    options: ClassVar[Mapping[str, str]] = {
        "config": "hardware configuration that decides how weights are packed (default auto)",
        "template": "loadable whose parameters are replaced (writing; required, except from a model library)",
        "name": "model to extract from a model library (default: the only one)",
    }

    def sniff(self, header: bytes, path: Path | None) -> bool:
        """Check whether a file has this format, from its first bytes (``header``) or its path."""
        return header[4:8] == b"NVDA"

    def open(self, source: Source, options: Options | None = None) -> LoadableContainer:
        """Open a file of this format. Raises FormatError for one that is broken."""
        return LoadableContainer(self, source, self.check_options(options).get("config", "auto"))

    def write(self, file: IO[bytes], parameters: Sequence[Parameter], options: Options | None = None) -> None:
        """The template with these parameters in place of the template's; the others stay. Parameters that equal
        the old ones leave the file unchanged, byte for byte."""
        chosen = self.check_options(options)
        if "template" not in chosen:
            raise FormatError(
                "a loadable needs more than parameters. Name the loadable to change with --option template=FILE."
            )
        names = [p.name for p in parameters]
        if len(set(names)) != len(names):
            raise FormatError("names of parameters: must be unique. Rename or exclude one.")
        template = LoadableContainer(self, Source.of(Path(chosen["template"])), chosen.get("config", "auto"))
        try:
            changed = template.decoded.replaced({p.name: p for p in parameters})
            if changed == template.loadable:
                write_data(file, template.source.data)
                return
            file.write(changed.to_bytes())
        except NvdlaError as error:
            raise FormatError(str(error)) from None
