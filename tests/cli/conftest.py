"""Loadables for tests through the command line: the project's samples."""

from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


@pytest.fixture
def lenet():
    return str(SAMPLES / "lenet.loadable")


@pytest.fixture
def digit():
    return str(sorted(SAMPLES.glob("digit*.pgm"))[0])


@pytest.fixture
def nvdla_command(capsys):
    """Runs ``nvdla WORDS``; returns (exit code, standard output, standard error)."""
    from nvdla.cli.main import main

    def call(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as exit:
            code = exit.code
        return code, *capsys.readouterr()

    return call
