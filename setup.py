"""What pyproject.toml cannot state: the long description, and archives that are equal whenever they are built.

The long description is README.md with links that hold on a package index. Times in archives are $SOURCE_DATE_EPOCH, by
default the first day that a ZIP file can store.
"""

import gzip
import io
import os
import re
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
LINK = re.compile(r"(!?)\[([^\]]+)\]\((?![a-z]+:)([^)]*)\)")


def long_description(readme: str, source: str = "") -> str:
    """Make relative links absolute below ``source``, a page of the repository; without one, turn them into text."""
    return LINK.sub(rf"\1[\2]({source}/\3)" if source else lambda found: "" if found[1] else found[2], readme)


def source_page(pyproject: str) -> str:
    """The address below which the repository's files are shown: [project.urls] "Source files", or none."""
    found = re.search(r'^"Source files" = "(https://[^"]+)"$', pyproject, flags=re.M)
    return found[1].rstrip("/") if found else ""


class ReproducibleSdist(sdist):
    """Source archive without the times, owners and modes of the machine that makes it."""

    def make_archive(self, *args: object, **options: object) -> str:
        """Make the archive, then rewrite it in order of name."""
        path = super().make_archive(*args, **options)
        with tarfile.open(path) as archive:
            members = sorted(archive.getmembers(), key=lambda each: each.name)
            contents = [archive.extractfile(each).read() if each.isfile() else b"" for each in members]
        stamp = int(os.environ["SOURCE_DATE_EPOCH"])
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for member, content in zip(members, contents, strict=True):
                plain = tarfile.TarInfo(member.name)
                plain.type, plain.size, plain.mtime = member.type, len(content), stamp
                plain.mode = 0o755 if member.isdir() else 0o644
                archive.addfile(plain, io.BytesIO(content))
        Path(path).write_bytes(gzip.compress(packed.getvalue(), mtime=stamp))
        return path


if __name__ == "__main__":
    os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    where = source_page((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    setup(
        long_description=long_description(text, where),
        long_description_content_type="text/markdown",
        cmdclass={"sdist": ReproducibleSdist},
    )
