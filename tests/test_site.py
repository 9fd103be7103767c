"""The site of the pages is built without a warning, without other hosts, and has every page in its navigation."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.browser import Window, started
from support.pages import page_module

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site."""
    for name in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(name, reason="the extra nvdla[docs] is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


def test_every_page_is_in_the_site(site):
    made = {path.name for path in site.glob("*.html")}
    pages = {path.with_suffix(".html").name for path in (ROOT / "docs").glob("*.md")} - {"README.html"}
    assert pages | {"index.html", "SECURITY.html", "CHANGELOG.html", "CONTRIBUTING.html", "RESULTS.html"} <= made


def test_pages_ask_no_other_host_for_anything(site):
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        asked = re.findall(r'<(?:script|img|iframe|source)[^>]*\bsrc="(https?:[^"]*)"', text)
        asked += re.findall(r'<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href="(https?:[^"]*)"', text)
        assert not asked, page.name


def test_no_page_has_a_drawing_that_a_script_of_another_host_would_make(site):
    for page in site.glob("*.html"):
        assert 'class="mermaid"' not in page.read_text(encoding="utf-8"), page.name


def test_the_reference_is_filled(site):
    """Pages that are made when the site is built have what they are made from."""
    api = (site / "api.html").read_text(encoding="utf-8")
    for name in (
        "nvdla.Runtime.run_raw",
        "nvdla.compiler.builder.Network.convolution",
        "nvdla.LinkError",
    ):
        assert f'id="{name}"' in api, name
    assert 'id="csb-diff"' in (site / "json.html").read_text(encoding="utf-8")
    assert "wasted" in (site / "tutorial-tool.html").read_text(encoding="utf-8")


def test_the_index_for_language_models_lists_every_page_with_its_purpose(site):
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# nvdla\n\n> Parse, verify")
    linked = re.findall(r"^- \[[^\]]+\]\(([\w-]+\.html)\)", text, flags=re.M)
    made = {path.name for path in site.glob("*.html")} - {"404.html"}
    assert len(linked) == len(set(linked))
    assert set(linked) == made
    assert len(re.findall(r"^- \[[^\]]+\]\([\w-]+\.html\): [\w`].{20}", text, flags=re.M)) == len(linked)
    assert "](" not in re.sub(r"^- \[[^\]]+\]\([\w-]+\.html\)", "", text, flags=re.M)


def test_links_of_the_built_pages_lead_to_files_and_anchors(site):
    """Sources are checked by test_documentation; here also what the generator adds, and the page of missing pages."""
    assert (site / "404.html").is_file()
    texts = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    names = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in texts.items()}
    broken = []
    for name, text in texts.items():
        for target, anchor in re.findall(r'<a\b[^>]*\bhref="([^"#:?]*)(?:#([^"]*))?"', text):
            there = target.strip("./") or name
            there = "index.html" if target in (".", "./", "/") else there
            if name != "404.html" and not (site / there).exists():
                broken.append((name, target))
            elif anchor and there in names and unquote(html.unescape(anchor)) not in names[there]:
                broken.append((name, f"{target}#{anchor}"))
    assert not broken


def test_the_search_works_from_a_disk(site):
    """A browser lets a page of a disk fetch no file and start no worker: both are scripts of the site."""
    driver, browser = started()
    try:
        window = Window(browser)
        window.page.goto((site / "index.html").as_uri())
        window.page.click(".md-search__input")
        window.page.keyboard.type("saturation", delay=20)
        window.page.wait_for_selector(".md-search-result__link", timeout=20_000)
        assert "aturation" in window.page.inner_text(".md-search-result__list")
        assert not [url for url in window.requests if not url.startswith(("file:", "data:", "blob:", "about:"))]
    finally:
        browser.close()
        driver.stop()


def test_code_and_tables_fit_their_column(site):
    """At 1280 pixels no block of code and no table has a scroll bar, except cells of notebooks."""
    driver, browser = started()
    try:
        page = Window(browser, width=1280).page
        notebooks = {path.stem for path in (ROOT / "docs").glob("*.ipynb")}
        for path in sorted(site.glob("*.html")):
            if path.stem in notebooks:
                continue
            page.goto(path.as_uri())
            wide = page.evaluate(
                """() => [...document.querySelectorAll("pre > code, article table")]
                .filter(block => block.scrollWidth > block.clientWidth)
                .map(block => block.innerText.slice(0, 80))"""
            )
            assert not wide, path.name
    finally:
        browser.close()
        driver.stop()


def test_versions_of_the_site_are_kept_side_by_side(tmp_path):
    """``mike deploy`` builds the site of a version next to the others, and lists them for the menu of versions."""
    pytest.importorskip("mike", reason="the extra nvdla[docs] is not installed")
    for name in ("mkdocs.yml", "docs", "tools", "nvdla", "kernels", "benchmarks", "samples", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    for page in ROOT.glob("*.md"):
        (tmp_path / page.name).symlink_to(page)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], cwd=tmp_path, check=True)
    names = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # mike starts mkdocs by name
    environment = {**os.environ, **names, "NO_MKDOCS_2_WARNING": "1", "PATH": programs}
    command = [sys.executable, "-c", "import mike.driver; mike.driver.main()", "deploy", "1.2", "latest"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    shown = subprocess.run(["git", "show", "gh-pages:versions.json"], cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(shown.stdout) == [{"version": "1.2", "title": "1.2", "aliases": ["latest"]}]
    listed = subprocess.run(["git", "ls-tree", "--name-only", "gh-pages:1.2"], cwd=tmp_path, capture_output=True)
    assert {b"index.html", b"lint.html", b"404.html"} <= set(listed.stdout.split())


def test_links_out_of_the_pages_become_text(tmp_path):
    relinked = page_module("site_hooks").relinked
    docs = ROOT / "docs"
    assert relinked("[a](lint.md#json)", docs, docs) == "[a](lint.md#json)"
    assert relinked("[a](docs/lint.md)", ROOT, docs) == "[a](lint.md)"
    assert relinked("[docs/lint.md](docs/lint.md)", ROOT, docs) == "[nvdla lint](lint.md)"
    assert relinked("[lint.md](lint.md#rules)", docs, docs) == "[nvdla lint](lint.md#rules)"
    tutorial = "tutorial-look.md"
    assert relinked(f"[{tutorial}]({tutorial})", docs, docs) == f"[look into a compiled network]({tutorial})"
    assert relinked("[results](../benchmarks/RESULTS.md#x)", docs, docs) == "[results](RESULTS.md#x)"
    assert relinked("[promise](../SECURITY.md#x)", docs, docs) == "[promise](SECURITY.md#x)"
    assert relinked("[the code](../nvdla/util/files.py)", docs, docs) == "the code (`../nvdla/util/files.py`)"
    assert relinked("[a notebook](tutorial-tool.ipynb)", docs, docs) == "[a notebook](tutorial-tool.md)"
    assert relinked("[schemas](json)", docs, docs) == "[schemas](json.md)"
    assert relinked("[NVDLA](http://nvdla.org)", docs, docs) == "[NVDLA](http://nvdla.org)"


def test_the_picture_of_the_concepts_is_current():
    module = page_module("concepts")
    assert module.PICTURE.read_text(encoding="utf-8") == module.concepts_picture(), "python tools/pages/concepts.py"
