"""Files around a release: checklist, citation, recipe, workflows, templates."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import nvdla

ROOT = Path(__file__).resolve().parents[1]
release = importlib.util.module_from_spec(
    importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
)
release.__spec__.loader.exec_module(release)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture
def ready(tmp_path):
    """A repository that is ready for the release 1.2.3."""
    files = {
        "nvdla/__init__.py": '"""x"""\n__version__ = "1.2.3"\n',
        "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.3\n",
        "recipe/recipe.yaml": 'context:\n  version: "1.2.3"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.2.3 - 2030-01-02\n\n## 1.2.2 - 2029-01-02\n",
        "changelog.d/README.md": "x\n",
        "pyproject.toml": "[project.urls]\n"
        + "".join(f'"{name}" = "https://example.org/{name[0]}"\n' for name in release.ADDRESSES),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    return tmp_path


def test_a_repository_that_is_ready_passes_every_step(ready, capsys):
    assert release.main(["1.2.3"], ready) == 0
    assert capsys.readouterr().out.count("- [x]") == len(release.STEPS)


@pytest.mark.parametrize(
    ("name", "old", "new", "steps"),
    [
        ("nvdla/__init__.py", "1.2.3", "1.2.2", [0]),
        ("CITATION.cff", "1.2.3", "1.2.2", [1]),
        ("recipe/recipe.yaml", "1.2.3", "1.2.2", [1]),
        ("CHANGELOG.md", "2030-01-02", "unreleased", [2]),
        ("CHANGELOG.md", "1.2.3", "1.2.4", [2]),
        ("changelog.d/x.added.md", "", "A line.", [3]),
        ("pyproject.toml", "https://example.org/I", "", [4]),
        ("other.txt", "", "new", []),
    ],
)
def test_each_step_fails_alone(ready, capsys, name, old, new, steps):
    """Every change here is also one that is not committed, the last step."""
    path = ready / name
    path.write_text(path.read_text().replace(old, new) if old else new)
    assert release.main(["1.2.3"], ready) == 1
    undone = [number for number, line in enumerate(capsys.readouterr().out.splitlines()) if "[ ]" in line]
    assert undone == [*steps, len(release.STEPS) - 1]


def test_the_page_lists_the_steps_of_the_script():
    page = read("docs/project.md").partition("<!-- steps of tools/release.py -->\n")[2].partition("<!-- end -->")[0]
    assert page.splitlines() == [f"- [ ] {step}" for step in release.STEPS]


def test_a_wrong_version_is_refused(capsys):
    assert release.main(["v1"]) == 2
    assert "usage" in capsys.readouterr().err


def test_the_citation_has_what_the_format_requires():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert (citation["version"], citation["license"]) == (nvdla.__version__, "Apache-2.0")


def test_the_recipe_has_the_requirements_of_the_project():
    recipe = yaml.safe_load(read("recipe/recipe.yaml"))
    assert recipe["context"]["version"] == nvdla.__version__
    project = read("pyproject.toml")
    needed = set(re.findall(r'"([^"]+)"', re.search(r"^dependencies = \[(.*?)^\]", project, flags=re.M | re.S)[1]))
    run = {each.replace("python-flatbuffers", "flatbuffers").replace(" ", "") for each in recipe["requirements"]["run"]}
    assert run == {*needed, "python>=3.10"}
    points = dict(each.split(" = ") for each in recipe["build"]["python"]["entry_points"])
    assert points == dict(re.findall(r'^(nvdla[\w-]*) = "(nvdla\.cli[^"]+)"$', project, flags=re.M))
    assert re.search(r'requires = \["setuptools(>=[\d.]+)"\]', project)[1] in "".join(recipe["requirements"]["host"])
    assert recipe["about"]["summary"] in project and recipe["about"]["license"] in project


def test_the_builder_of_conda_packages_renders_the_recipe():
    rattler_build = pytest.importorskip("rattler_build", reason="the package py-rattler-build is not installed")
    text = read("recipe/recipe.yaml")
    (variant,) = rattler_build.Stage0Recipe.from_yaml(text).render()
    assert (variant.recipe.package.name, str(variant.recipe.package.version)) == ("nvdla", nvdla.__version__)
    assert (variant.recipe.build.noarch, len(variant.recipe.requirements.run)) == ("python", 8)
    with pytest.raises(rattler_build.RecipeParseError):  # it knows the fields
        rattler_build.Stage0Recipe.from_yaml(text.replace("noarch:", "noarhc:"))


@pytest.mark.parametrize("name", ["bug.yml", "request.yml"])
def test_an_issue_template_has_a_name_and_fields_with_labels(name):
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}"))
    assert {"name", "description", "body"} <= form.keys()
    assert all(field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_templates_name_files_and_commands_that_exist():
    text = read(".github/PULL_REQUEST_TEMPLATE.md") + read(".github/ISSUE_TEMPLATE/bug.yml")
    assert all((ROOT / name).exists() for name in re.findall(r"`([\w.]+/[\w.]*)`", text))
    assert "NVDLA_TRACEBACK" in read("nvdla/cli/main.py")


WORKFLOWS = {path.name: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}


def steps(name):
    """(job, step) of a workflow."""
    jobs = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))["jobs"]
    return [(job, step) for job, about in jobs.items() for step in about["steps"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_names_commands_files_and_extras_that_exist(name):
    assert {"ci.yml", "release.yml"} == WORKFLOWS.keys()
    document = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))
    assert True in document and document["permissions"] == {"contents": "read"}  # YAML reads the key "on" as true
    extras = re.findall(r"^([\w-]+) = \[", read("pyproject.toml").partition("optional-dependencies]")[2], flags=re.M)
    commands = {"bash", "mkdocs", "mypy", "nvdla", "pip", "pytest", "python", "ruff", "sudo", "twine"}
    for _, step in steps(name):
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", step["uses"])
            continue
        words = step["run"].split()
        assert words[0] in commands
        for word in words[1:]:
            if "/" in word and not word.startswith("dist/"):
                assert (ROOT / word).exists(), word
        for used in re.findall(r"\.\[([\w,-]+)\]", step["run"]):
            assert set(used.split(",")) <= set(extras)


def test_the_matrix_has_every_supported_python():
    matrix = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]["versions"]["strategy"]["matrix"]["python"]
    assert matrix == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', read("pyproject.toml"))
    assert " ".join(matrix) in read(".ci/interpreters")


def test_the_workflows_do_what_the_gate_does():
    """The gate runs README's commands; linters and types are a job of their own, so that their result comes early."""
    run = [step["run"] for _, step in steps("ci.yml") if "run" in step]
    assert "bash .ci/run" in run
    block = re.search(r"<!-- command: test -->\n```sh\n(.*?)^```", read("README.md"), flags=re.M | re.S)[1]
    for line in block.splitlines():
        command = line.removeprefix(".venv/bin/")
        if command.startswith(("ruff", "mypy")):
            assert command in run, command


def test_coverage_of_all_modules_but_generated_ones_is_measured_with_a_limit():
    tomllib = pytest.importorskip("tomllib")
    tool = tomllib.loads(read("pyproject.toml"))["tool"]["coverage"]
    assert tool["run"]["source"] == ["nvdla"] and tool["run"]["omit"] == ["*/generated/*"]
    assert tool["report"]["fail_under"] >= 90
    gate = read(".ci/run")
    assert "--cov --cov-report=xml:$here/build/coverage.xml" in gate and "COVERAGE_CORE=sysmon" in gate
    uploads = [step["with"] for job, step in steps("ci.yml") if job == "gate" and "upload-artifact" in str(step)]
    assert uploads == [{"name": "coverage", "path": "build/coverage.xml"}]


def test_the_gate_finds_the_first_of_several_interpreters(tmp_path):
    """It measures coverage with a Python that does so fast."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / f"python{version}").symlink_to(sys.executable)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}

    def find(*versions):
        command = ["bash", str(ROOT / ".ci" / "interpreters"), "--find", *versions]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.strip()

    assert find("3.1", version, "3.2") == (0, str(tmp_path / f"python{version}"))
    assert find("3.1", "3.2") == (1, "")


def test_a_release_is_published_without_a_password_with_attestations_and_a_bill_of_materials():
    jobs = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"} and jobs["publish"]["needs"] == "build"
    (publish,) = (step for job, step in steps("release.yml") if "pypi-publish" in step.get("uses", ""))
    assert publish["with"] == {"attestations": True}
    artifacts = [
        step["with"]["name"] for job, step in steps("release.yml") if "upload-artifact" in step.get("uses", "")
    ]
    assert artifacts == ["packages", "sbom"]
    assert "secrets." not in read(".github/workflows/release.yml")


PAPER = read("paper/paper.md")


def test_the_paper_has_what_the_journal_requires():
    head, text = PAPER.removeprefix("---\n").split("\n---\n", 1)
    about = yaml.safe_load(head)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= about.keys()
    indices = {place["index"] for place in about["affiliations"]}
    assert all(author["affiliation"] in indices for author in about["authors"])
    headings = re.findall(r"^# (.*)$", text, flags=re.M)
    assert headings[:3] == ["Summary", "Statement of need", "Comparison with other software"]
    assert {"Validation", "Performance"} <= set(headings) and headings[-1] == "References"
    assert 250 <= len(text.split()) <= 1000
    cited = set(re.findall(r"@(\w+)", text))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", read(f"paper/{about['bibliography']}"), flags=re.M))


def test_numbers_of_the_paper_are_those_of_the_measurements_and_of_the_documentation():
    sources = {"Validation": read("docs/concepts.md"), "Performance": read("benchmarks/RESULTS.md")}
    for heading, source in sources.items():
        chapter = PAPER.partition(f"\n# {heading}\n")[2].partition("\n# ")[0]
        chapter = re.sub(r"ResNet-50|AVX512|float32|int8", "", chapter)
        numbers = re.findall(r"\d[\d.,]*\d|\d", chapter)
        assert len(numbers) >= 5
        for number in numbers:
            assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d,]|\.\d)", source), (heading, number)
