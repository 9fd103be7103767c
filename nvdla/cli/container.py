"""``nvdla container``: the containers next to the loadable, found by content, all with one interface."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from nvdla.cli.output import (
    add_format_options,
    escape,
    only_tables,
    output_file,
    print_document,
    print_pairs,
    print_table,
    say,
)
from nvdla.errors import FormatError, counted
from nvdla.interop.containers import registry
from nvdla.tensors.parameters import Parameter
from nvdla.util.escaping import Document, Json

_LONG_LIST = 8
_LONG_TEXT = 120
_PLURALS = {"rodata": "rodata", "weights": "weights", "bias": "biases"}
HELP = """Read and write other model formats: IREE archives and modules, TVM model libraries, tensor files.

  nvdla container list model.irpa
  nvdla container verify --warnings-as-errors model.vmfb
  nvdla container convert model.safetensors model.irpa
  nvdla container run module.vmfb --function abs --input -5"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    commands = parser.add_subparsers(dest="container_command", required=True, metavar="COMMAND")

    def command(name: str, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        add_format_options(sub)
        return sub

    command("formats", "list the formats with their options")
    _add_file(command("list", "list the parts of a file"))
    verify = _add_file(command("verify", "check a file; exit code 1 if it has errors"))
    verify.add_argument("--warnings-as-errors", action="store_true", help="exit with code 1 for warnings, too")
    extract = _add_file(command("extract", "write the parts of a file to a directory"))
    extract.add_argument("names", nargs="*", metavar="NAME", help="extract only these parts")
    extract.add_argument(
        "--extract",
        action="append",
        default=[],
        type=output_file(""),
        metavar="[SCOPE::]NAME=FILE",
        help="write this part to this file instead of the output directory",
    )
    extract.add_argument(
        "--output", "-o", default=".", metavar="DIR", help="output directory (default: current directory)"
    )
    _configure_writers(command)
    run = _add_file(command("run", "run a function of a module in the interpreter"))
    run.add_argument("--function", required=True, metavar="NAME", help="name of a function, or its ordinal")
    run.add_argument(
        "--input", action="append", default=[], metavar="VALUE", help="input argument; repeat the option in order"
    )
    run.add_argument(
        "--parameters",
        action="append",
        default=[],
        metavar="[SCOPE=]FILE",
        help="parameters that the function loads: a file of any format with tensors, such as an .irpa with splats",
    )
    disassemble = _add_file(command("disassemble", "print the programs of a file as text"))
    disassemble.add_argument("--function", metavar="NAME", help="name of a function, or its ordinal")
    disassemble.add_argument("--source", action="store_true", help="include source lines, if the file contains them")


def _configure_writers(command: Any) -> None:
    convert = command("convert", "convert one or more files to another format, or rewrite one")
    convert.add_argument("files", nargs="+", metavar="INPUT", help="files to read")
    convert.add_argument("output", type=output_file(""), metavar="OUTPUT", help="file to write")
    convert.add_argument("--exclude", action="append", default=[], metavar="NAME", help="omit a parameter")
    convert.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help="rename a parameter")
    convert.add_argument("--strip", action="store_true", help="replace all data with splats of zero")
    convert.add_argument(
        "--splat",
        action="append",
        default=[],
        metavar="NAME[=[TYPE=]VALUE]",
        help="replace the data of a parameter with a splat",
    )
    create = command("create", "create a file from values, files, or both")
    create.add_argument("output", type=output_file(""), metavar="OUTPUT", help="file to write")
    create.add_argument("files", nargs="*", metavar="INPUT", help="input files")
    create.add_argument(
        "--fill",
        action="append",
        default=[],
        metavar="NAME=SHAPExTYPE[=VALUE]",
        help="add a parameter filled with one value, for example w=64x3xf32=0.5",
    )
    create.add_argument(
        "--splat",
        action="append",
        default=[],
        metavar="NAME=SHAPExTYPE[=VALUE]",
        help="as --fill, stored as a splat if the format supports it",
    )
    create.add_argument(
        "--external",
        action="append",
        default=[],
        metavar="NAME=FILE[:OFFSET[:LENGTH]]",
        help="parameter stored in an external file (.irpa)",
    )
    for writer in (convert, create):
        writer.add_argument("--to", metavar="FORMAT", help="format to write (default: from the file extension)")
        _add_options(writer)
    edit = command("edit", "change an .irpa archive in place: erase, replace, append")
    edit.add_argument("file", metavar="FILE", help="archive to edit in place")
    edit.add_argument("--erase", action="append", default=[], metavar="NAME", help="erase a parameter")
    edit.add_argument("--scrub", action="store_true", help="also overwrite erased data with zeros")
    edit.add_argument(
        "--replace",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="replace data with a file, in place if it fits, otherwise appended",
    )
    edit.add_argument(
        "--append",
        action="append",
        default=[],
        metavar="INPUT",
        help="append the parameters of this file (any format)",
    )


def _add_file(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("file", metavar="FILE", help="file, or SCOPE=FILE (an archive does not record its scope)")
    _add_options(parser)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="source_format", metavar="FORMAT", help="format to read (default: detected)")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="format option ('nvdla container formats' lists them)",
    )


def run(args: argparse.Namespace) -> int:
    """0 fine, 1 a check failed; bad input raises FormatError."""
    return globals()[f"_run_{args.container_command}"](args)


def _options(args: argparse.Namespace) -> dict[str, str]:
    return dict(_pair(text, "--option", "KEY=VALUE") for text in args.option)


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise FormatError(f"{option} {text}: must be {form}")
    return key, value


def _open(args: argparse.Namespace) -> registry.Container:
    return registry.open(_scoped(args.file)[1], _options(args), args.source_format)


def _scoped(text: str) -> tuple[str, Path]:
    """``SCOPE=FILE`` as IREE's tools take it (an archive does not record its scope), or ``FILE``, of scope ""."""
    scope, separator, path = text.partition("=")
    return (scope, Path(path)) if separator and not os.path.exists(text) else ("", Path(text))


def _part(text: str, scope: str) -> tuple[str, str]:
    """(name, file) of ``[SCOPE::]NAME=FILE``; names may hold "=", so the last one counts."""
    name, separator, target = text.rpartition("=")
    if not separator or not name or not target:
        raise FormatError(f"--extract {text}: must be [SCOPE::]NAME=FILE")
    given, marked, key = name.partition("::")
    if marked and given == scope:
        return key, target
    if scope:
        raise FormatError(f"--extract {text}: must begin with {scope}:: (the file's scope)")
    return name, target


def _document(action: str, form: registry.Format | None = None, **facts: Any) -> Document:
    """Document that ``--json`` prints for a sub-command; ``form`` is the container's format."""
    named = {} if form is None else {"container": form.name}
    return {"format": f"nvdla-container-{action}", "version": 1, **named, **facts}


def _run_formats(args: argparse.Namespace) -> int:
    rows: list[Document] = [
        {"format": f.name, "title": f.title, "suffixes": list(f.suffixes), "options": dict(f.options)}
        for f in registry.formats().values()
    ]
    if not print_document(_document("formats", formats=rows), args):
        print_table("formats", rows, ["format", "title", "suffixes"])
        print_table(
            "options",
            [{"format": r["format"], "option": k, "meaning": v} for r in rows for k, v in r["options"].items()],
        )
    return 0


def _run_list(args: argparse.Namespace) -> int:
    container = _open(args)
    info, rows = container.info(), container.rows()
    if scope := _scoped(args.file)[0]:
        info = {"scope": scope, **info}
    if not print_document(_document("list", container.format, file=args.file, info=info, rows=rows), args):
        say(f"{args.file}: {container.format.title}")
        tables = {key: value for key, value in info.items() if _is_table(value)}
        listed = {"metadata", "metadata_types"} if "metadata_types" in info else set()
        print_pairs("facts", {k: _shown(k, v, rows) for k, v in info.items() if k not in {*tables, *listed}})
        for title, table in tables.items():
            print_table(title, table)
        if listed:
            kinds, values = info["metadata_types"], info["metadata"]
            print_table("metadata", [{"key": k, "type": kinds[k], "value": _brief(v)} for k, v in values.items()])
        for title, part in _by_kind(rows).items():
            print_table(title, part)
    return 0


def _by_kind(rows: Sequence[Document]) -> dict[str, list[Document]]:
    """Rows of unlike things (imports, functions, segments) as a table for each kind, signatures in words. Attributes
    are listed with the exports."""
    if not any("kind" in row for row in rows):
        return {"content": list(rows)}
    parts: dict[str, list[Document]] = {}
    for row in rows:
        hidden = {"kind", "signature", *(["attributes"] if row["kind"] == "function" else [])}
        parts.setdefault(_plural(row["kind"]), []).append({k: v for k, v in row.items() if k not in hidden})
    return parts


def _plural(kind: str) -> str:
    return _PLURALS.get(kind, f"{kind}s")


def _shown(key: str, value: Json, rows: Sequence[Document]) -> Json:
    """A fact on one line: pairs as ``name (number)``; of a long list that is a table below, the length."""
    if not isinstance(value, list):
        return value
    if len(value) > _LONG_LIST and any(_plural(row.get("kind", "")) == key for row in rows):
        return f"{len(value)} (see below)"
    return [f"{item[0]} ({item[1]})" if isinstance(item, list) and len(item) == 2 else item for item in value]


def _brief(value: Json) -> Json:
    """A metadata value in a cell."""
    if isinstance(value, dict):
        return "not shown"
    text = ", ".join(map(str, value)) if isinstance(value, list) else value
    return f"{text[:_LONG_TEXT]}..." if isinstance(text, str) and len(text) > _LONG_TEXT else text


def _is_table(value: object) -> bool:
    """Return whether a fact is a list of items, which gets its own table."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _run_verify(args: argparse.Namespace) -> int:
    source = registry.Source.of(_scoped(args.file)[1])
    form = registry.detect(source) if args.source_format is None else registry.format_named(args.source_format)
    findings = form.verify(source, args.warnings_as_errors, _options(args))
    passed = not any(finding.severity is registry.Severity.ERROR for finding in findings)
    rows = [finding.as_dict() for finding in findings]
    document = _document("verify", form, file=args.file, strict=args.warnings_as_errors, passed=passed, findings=rows)
    if not print_document(document, args):
        if rows or only_tables():
            print_table("findings", rows, ("severity", "where", "offset", "message"))
        say(f"{args.file}: {form.title}: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


def _run_extract(args: argparse.Namespace) -> int:
    container = _open(args)
    chosen = [_part(text, _scoped(args.file)[0]) for text in args.extract]
    written = [str(container.extract_to(name, target)) for name, target in chosen]
    if args.names or not chosen:
        written += [str(path) for path in container.extract(args.output, args.names or None)]
    if not print_document(_document("extract", container.format, file=args.file, written=written), args):
        for path in written or [f"{args.file}: nothing to extract"]:
            say(path)
    return 0


def _run_convert(args: argparse.Namespace) -> int:
    from nvdla.interop.containers.values import transform

    target, options = _target(args)
    sources = [registry.Source.of(Path(name)) for name in args.files]
    if len(sources) == 1 and not (args.exclude or args.rename or args.strip or args.splat):
        form = registry.detect(sources[0]) if args.source_format is None else registry.format_named(args.source_format)
        # The source may accept its own options (a folder of external files), the target the others.
        own = {k: v for k, v in options.items() if k in form.options and k not in target.options}
        if form.options is target.options:
            own = {}
        theirs = {k: v for k, v in options.items() if k not in own}
        container = form.open(sources[0], own)
        return _write(args, target, lambda file: container.convert_to(file, target, theirs))
    renames = dict(_pair(text, "--rename", "OLD=NEW") for text in args.rename)
    parameters = [p for source in sources for p in registry.open(source, None, args.source_format).parameters()]
    changed = transform(parameters, args.exclude, renames, args.strip, args.splat)
    return _write(args, target, lambda file: target.write_checked(file, changed, options))


def _run_create(args: argparse.Namespace) -> int:
    from nvdla.interop.containers.values import shaped_parameter

    target, options = _target(args)
    given = [shaped_parameter(text, as_splat=False) for text in args.fill]
    given += [shaped_parameter(text, as_splat=True) for text in args.splat]
    if args.external:
        given += _external(args, target)
    sources = [registry.Source.of(Path(name)) for name in args.files]
    if not given:
        return _write(args, target, lambda file: target.build(file, sources, options))
    read = [p for source in sources for p in registry.open(source, None, args.source_format).parameters()]
    return _write(args, target, lambda file: target.write_checked(file, _splats_first(given) + read, options))


def _external(args: argparse.Namespace, target: registry.Format) -> list[Parameter]:
    """Entries that name files, relative to the folder of the archive."""
    from nvdla.interop.containers.irpa_format import external_parameter

    if target.name != "irpa":
        raise FormatError(
            f"--external: must be used with irpa files, got {target.name}. Other formats have no external entries."
        )
    pairs = [_pair(text, "--external", "NAME=FILE[:OFFSET[:LENGTH]]") for text in args.external]
    return [external_parameter(name, place, Path(args.output).parent) for name, place in pairs]


def _splats_first(parameters: Sequence[Parameter]) -> list[Parameter]:
    """iree-create-parameters lists its splats before its data."""
    return sorted(parameters, key=lambda p: p.data is not None)


def _target(args: argparse.Namespace) -> tuple[registry.Format, dict[str, str]]:
    form = registry.format_named(args.to) if args.to else registry.format_for_output(args.output)
    return form, _options(args)


def _write(args: argparse.Namespace, target: registry.Format, write: Callable[[IO[bytes]], object]) -> int:
    size = registry.write_whole(args.output, write)
    if not print_document(_document("write", target, output=args.output, bytes=size), args):
        say(f"{args.output}: {target.title}, {size} bytes")
    return 0


def _run_edit(args: argparse.Namespace) -> int:
    from nvdla.interop.containers.irpa import append_file, erase, fits, replace
    from nvdla.interop.containers.irpa.writer import mapped_for_writing
    from nvdla.interop.containers.irpa_format import entry_spec

    registry.open(Path(args.file), None, "irpa")  # raises for other files before any change
    replacements = [_pair(text, "--replace", "NAME=FILE") for text in args.replace]
    contents = {name: registry.Source.of(Path(path)).data for name, path in replacements}
    if len(contents) < len(replacements):
        raise FormatError("--replace: parameters: must be unique")
    larger = {name: data for name, data in contents.items() if not fits(args.file, name, len(data))}
    specs = [[entry_spec(p) for p in registry.open(Path(name)).parameters()] for name in args.append]
    document = _document("edit", file=args.file, erased=0, replaced=list(contents), appended_at=[])
    if larger:
        append_file(args.file, [], replaced=larger)
    if args.erase or len(contents) > len(larger):
        with mapped_for_writing(args.file) as mapping:
            for name in contents.keys() - larger.keys():
                replace(mapping, name, contents[name])
            if args.erase:
                document["erased"] = erase(mapping, args.erase, args.scrub)
    document["appended_at"] = [append_file(args.file, group) for group in specs]
    if not print_document(document, args):
        appended = f"{counted(len(specs), 'archive')} appended"
        say(f"{args.file}: {document['erased']} erased, {len(contents)} replaced, {appended}")
    return 0


def _run_run(args: argparse.Namespace) -> int:
    container = registry.open(Path(args.file), None, args.source_format)
    sets: dict[str, list[Parameter]] = {}
    for scope, path in map(_scoped, args.parameters):
        sets.setdefault(scope, []).extend(registry.open(path).parameters())
    outcome = container.call(args.function, args.input, _options(args), sets)
    if not print_document(_document("run", file=args.file, function=args.function, **outcome), args):
        if "ran_on" in outcome:
            say(f"the function needs a device: it ran on {outcome['ran_on']}, not in the interpreter", sys.stderr)
        for position, result in enumerate(outcome["results"]):
            print(f"result[{position}]: {result['type']}={result['value']}")
    return 0


def _run_disassemble(args: argparse.Namespace) -> int:
    container = _open(args)
    text = container.disassemble(args.function, args.source)
    if not print_document(_document("disassemble", container.format, file=args.file, text=text), args):
        print(escape(text), end="" if text.endswith("\n") else "\n")
    return 0
