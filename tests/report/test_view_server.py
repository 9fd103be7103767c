"""``nvdla view``: answers its own page and nobody else, runs what is dropped, ends with Ctrl-C."""

import argparse
import errno
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.cycles.document import chain_cycles
from nvdla.analysis.study import Study
from nvdla.cli.view import Folder, Single, configure
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.errors import FormatError
from nvdla.report.server import BACK_OFF, MAX_FILE, ViewServer
from tests.support.packages import write_package

SECONDS = 60


class Fixed:
    """A source whose pages are known; ``ran`` says what was run."""

    def __init__(self, data):
        self.data = data
        self.ran = []
        self.resized = []

    def page(self, net):
        return self.data

    def run(self, net, name, tensor, data, resize=False):
        self.resized.append(resize)
        self.ran.append((name, tensor, data))
        return self.data


@pytest.fixture
def server(lenet_data):
    server = ViewServer(Fixed(lenet_data))
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.stop()
    thread.join(SECONDS)


def ask(server, method="GET", path="/", token=None, body=None, **headers):
    """(status, headers, body) of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
    query = urlencode({"token": server.token if token is None else token})
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    connection.request(method, f"{path}{'&' if '?' in path else '?'}{query}", body, headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.headers), answer.read()
    connection.close()
    return found


def test_the_page_comes_with_its_policy(server):
    status, headers, body = ask(server)
    assert status == 200
    assert body.startswith(b"<!DOCTYPE html>")
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("token", ["", "x", "\u00e4"])
def test_without_the_token_nothing_is_answered(server, token):
    for method in ("GET", "POST"):
        status, _, body = ask(server, method, "/run" if method == "POST" else "/", token, b"")
        assert status == 403
        assert b"token" in body
    assert server.source.ran == []


def test_every_server_has_a_new_token(server, lenet_data):
    other = ViewServer(Fixed(lenet_data))
    other.close()
    assert server.token != other.token
    assert len(server.token) >= 32


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:1", "localhost.example.org"])
def test_another_host_is_refused(server, host):
    """So that a name that leads here is of no use to a page from elsewhere."""
    assert ask(server, Host=host)[0] == 403


def test_its_own_names_are_answered(server):
    assert ask(server, Host=f"localhost:{server.port}")[0] == 200


def test_requests_of_other_pages_are_refused(server):
    for origin in ("http://example.org", "null", f"https://127.0.0.1:{server.port}"):
        assert ask(server, "POST", "/run?name=a.pgm", body=b"x", Origin=origin)[0] == 403
    assert server.source.ran == []
    own = f"http://127.0.0.1:{server.port}"
    assert ask(server, "POST", "/run?name=a.pgm", body=b"x", Origin=own)[0] == 200
    assert server.source.ran == [("a.pgm", "", b"x")]


def test_every_tensor_is_handed_out_whole(server, lenet_data):
    """The page holds parts of them; these are all elements, little-endian."""
    mark = lenet_data.document["mark"]
    rows = lenet_data.document["sides"][0]["tensors"]
    assert any(row["shown"] != row["shape"] for row in rows)
    for number, (row, array) in enumerate(zip(rows, lenet_data.whole[0], strict=True)):
        status, headers, body = ask(server, path=f"/tensor?side=0&tensor={number}&mark={mark}")
        assert (status, headers["Content-Type"]) == (200, "application/octet-stream")
        got = np.frombuffer(body, np.dtype(row["dtype"]).newbyteorder("<")).reshape(row["shape"])
        assert (got == array).all()
        assert got.min() == row["min"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("side=0&tensor=999&mark=MARK", b"no tensor '999'"),
        ("side=0&tensor=-1&mark=MARK", b"no tensor '-1'"),
        ("side=0&tensor=%D9%A0&mark=MARK", b"no tensor"),
        (f"side=0&tensor={'0' * 5000}&mark=MARK", b"no tensor"),
        ("side=1&tensor=0&mark=MARK", b"side '1'"),
        ("side=x&tensor=y&mark=MARK", b"no tensor"),
        ("side=0&tensor=0&mark=old", b"later run"),
        ("", b"later run"),
    ],
)
def test_a_missing_tensor_is_reported(server, lenet_data, words, said):
    status, _, body = ask(server, path=f"/tensor?{words.replace('MARK', lenet_data.document['mark'])}")
    assert status == 422
    assert said in body


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/run", {}, 404),
        ("GET", "/../etc/passwd", {}, 404),
        ("POST", "/", {}, 404),
        ("POST", "/run", {"Content_Length": "x"}, 411),
        ("POST", "/run", {"Content_Length": str(MAX_FILE + 1)}, 413),
        ("POST", "/run", {"Content_Length": "-5"}, 411),
        ("POST", "/run", {"Content_Length": "9" * 5000}, 413),
        ("GET", f"/?{'&'.join(f'x{at}=1' for at in range(40))}", {}, 400),
        ("POST", f"/run?{'&'.join(f'x{at}=1' for at in range(40))}", {}, 400),
        ("PUT", "/", {}, 501),
    ],
)
def test_what_it_does_not_know_is_refused(server, method, path, headers, status):
    assert ask(server, method, path, **headers)[0] == status
    assert server.source.ran == []


def test_an_address_that_is_none_is_answered(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as raw:
        raw.sendall(f"GET http://[x/ HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_a_failure_of_its_own_is_answered(server, monkeypatch):
    monkeypatch.setattr(server.source, "page", lambda net: 1 // 0)
    status, _, body = ask(server)
    assert (status, body) == (500, b"internal error: ZeroDivisionError\n")


def test_without_descriptors_it_waits_between_two_tries(server, monkeypatch):
    """accept() fails while the system has none left: the loop must not turn at full speed."""
    real, tries = server._server.socket.accept, []

    class Listener:
        def accept(self):
            tries.append(time.monotonic())
            if len(tries) < 4:
                raise OSError(errno.EMFILE, "no descriptor")
            return real()

        def __getattr__(self, name):
            return getattr(listener, name)

    listener = server._server.socket
    monkeypatch.setattr(server._server, "socket", Listener())
    assert ask(server)[0] == 200
    assert tries[3] - tries[0] >= 3 * BACK_OFF


@pytest.fixture
def single(tmp_path, lenet_path):
    """What runs dropped files, without a server: LeNet's, and the directory of its files."""
    parser = argparse.ArgumentParser()
    configure(parser)
    return Single(parser.parse_args([str(lenet_path)]), tmp_path), tmp_path


def test_a_drop_for_an_unknown_input_is_refused_and_leaves_nothing(single, digit_path):
    source, folder = single
    for tensor in ("t0", "t1"):
        with pytest.raises(FormatError, match=f"a.pgm: input must be one of data, got '{tensor}'"):
            source.run("", "a.pgm", tensor, digit_path.read_bytes())
    assert not list(folder.iterdir())
    for tensor in ("", "data", ""):  # the only input, by name or without
        assert source.run("", "a.pgm", tensor, digit_path.read_bytes()).document["sides"][0]["run"]["error"] is None
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(("name", "data"), [("bad.pgm", b"P5 nothing"), ("bad.bin", b"short")])
def test_a_drop_that_cannot_be_read_leaves_the_one_before(single, digit_path, name, data):
    source, folder = single
    with pytest.raises(FormatError, match=name.replace(".", r"\.")) as caught:
        source.run("", name, "data", data)
    assert str(folder) not in str(caught.value)
    assert not list(folder.iterdir())
    source.run("", "good.pgm", "data", digit_path.read_bytes())
    with pytest.raises(FormatError, match=name.replace(".", r"\.")):
        source.run("", name, "data", data)
    assert [each.read_bytes() for each in folder.iterdir()] == [digit_path.read_bytes()]


def test_a_picture_of_another_size_is_scaled_on_request(single, tmp_path_factory):
    from PIL import Image

    source, _ = single
    large = tmp_path_factory.mktemp("large") / "large.pgm"
    Image.fromarray(np.full((40, 60), 9, np.uint8)).save(large)
    source._args.no_preprocess = True  # LeNet's layer file scales pictures of digits
    message = r"large.pgm: size: must be 28 x 28 \(width x height\), got 60 x 40. Scale the image, or tick 'resize'."
    with pytest.raises(FormatError, match=message):
        source.run("", "large.pgm", "data", large.read_bytes())
    page = source.run("", "large.pgm", "data", large.read_bytes(), resize=True)
    assert page.document["sides"][0]["run"]["error"] is None


def test_the_tick_of_the_page_reaches_the_run(server):
    for resize in ("", "1"):
        ask(server, "POST", f"/run?name=a.pgm&resize={resize}", Content_Length="0")
    assert server.source.resized == [False, True]


def test_a_drop_on_a_part_runs_the_whole_package(tmp_path):
    pytest.importorskip("onnxruntime")
    write_package(tmp_path)
    parser = argparse.ArgumentParser()
    configure(parser)
    folder = Folder(parser.parse_args([str(tmp_path / "net.nvpkg")]))
    page = folder.run("part2.loadable", "x.npy", "", (tmp_path / "x.npy").read_bytes())
    given = Folder(parser.parse_args([str(tmp_path / "net.nvpkg"), "--input", str(tmp_path / "x.npy")]))
    for part in ("part2.loadable", "part0.loadable"):
        run = folder.page(part).document["sides"][0]["run"]
        assert run["error"] is None and run == given.page(part).document["sides"][0]["run"]
    assert page.document["sides"][0]["run"] == folder.page("part2.loadable").document["sides"][0]["run"]
    with pytest.raises(FormatError, match=r"y\.npy: input \w+: shape must be "):
        folder.run("part2.loadable", "y.npy", "", (tmp_path / "calibration.npy").read_bytes())


def test_it_listens_on_the_loopback_interface_alone(server):
    assert server._server.server_address[0] == "127.0.0.1"
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as raw:
        raw.sendall(b"\x00\xff nonsense\r\n\r\n")
        assert b"400" in raw.recv(4096)
    assert ask(server)[0] == 200  # and goes on


def start(*words, form="--json"):
    return subprocess.Popen(
        [sys.executable, "-m", "nvdla", "view", *map(str, words), form],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def command():
    """``command(...)`` starts ``nvdla view`` and returns the process and its document."""
    started = []

    def call(*words):
        process = start(*words)
        started.append(process)
        return process, json.loads(process.stdout.readline())

    yield call
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_with_0(command, lenet_path, as_documented, number):
    process, document = command(lenet_path)
    as_documented(document)
    process.send_signal(number)
    assert process.wait(SECONDS) == 0
    assert process.stderr.read() == ""
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", document["port"]), timeout=5)


@pytest.mark.parametrize("is_directory", [False, True])
def test_the_address_alone_is_on_its_line(lenet_path, is_directory):
    """Terminals and scripts take the line as the address."""
    process = start(lenet_path.parent if is_directory else lenet_path, form="--no-browser")
    try:
        assert re.fullmatch(rb"http://127\.0\.0\.1:\d+/\?token=[\w-]+\n", process.stdout.buffer.readline())
        assert process.stdout.buffer.readline() == b"Open it in a browser on this machine; Ctrl-C ends.\n"
    finally:
        process.kill()
        process.communicate()


def test_a_file_that_is_not_a_loadable_is_refused_before_the_server_starts(tmp_path):
    (tmp_path / "x.nvdla").write_bytes(b"nothing")
    for words in ((tmp_path / "x.nvdla",), (tmp_path,), (tmp_path / "x.nvdla", "--port", "99999")):
        process = start(*words)
        if words == (tmp_path,):
            assert "url" in json.loads(process.stdout.readline())  # the index says it
            process.kill()
        else:
            assert process.wait(SECONDS) == 2
        process.communicate()


def test_an_image_that_is_dropped_is_run(window, command, lenet_path, digit_path):
    process, document = command(lenet_path, "--class-names", digit_path.with_name("labels.txt"))
    shown = window().open(document["url"])
    assert shown.page.locator("#tab-values").count() == 0
    shown.page.set_input_files("#file", digit_path)
    shown.page.locator("#toast", has_text="digit7.pgm has run").wait_for()
    shown.page.click("#tab-overview")
    assert shown.page.locator(".ranks th >> nth=0").inner_text().startswith("7")
    shown.page.click("#tab-values")
    assert shown.page.locator(".value").count() == 5
    other = digit_path.with_name("digit3.pgm").read_bytes()
    drop = shown.page.evaluate_handle(
        "bytes => { const all = new DataTransfer();"
        " all.items.add(new File([new Uint8Array(bytes)], 'digit3.pgm')); return all }",
        list(other),
    )
    shown.page.dispatch_event("body", "drop", {"dataTransfer": drop})
    shown.page.locator("#toast", has_text="digit3.pgm has run").wait_for()
    shown.page.click("#tab-overview")
    assert shown.page.locator(".ranks th >> nth=0").inner_text().startswith("3")
    assert shown.errors == []
    assert shown.foreign((f"http://127.0.0.1:{document['port']}/", "data:", "blob:")) == []
    assert process.poll() is None


def test_tensors_are_served_at_full_resolution_on_request(window, tmp_path, command):
    """A convolution of 24 channels, 80x80: the page holds 16 of them, thinned out; the button brings all."""
    path, tensor = wide_network(tmp_path)
    _, document = command(path, "--input", tmp_path / "in.npy")
    shown = window().open(document["url"] + "#view=Graph&op=0/1")
    panel = shown.page.locator("#panel .tensor >> nth=0")
    assert "16 of 24 channels" in panel.inner_text()
    before = panel.locator("canvas").evaluate("c => c.width")
    panel.locator("button.whole").click()
    panel.locator("button.whole").wait_for(state="detached")
    assert panel.locator("canvas").evaluate("c => c.width") > before
    panel.locator("input").fill("23")
    panel.locator("input").press("Enter")
    pixels = panel.locator("canvas").evaluate(
        "c => [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]]"
    )
    assert pixels[:2] == [80, 80]
    grey = np.array(pixels[2]).reshape(80, 80, 4)[..., 0]
    low, high = float(tensor.min()), float(tensor.max())
    assert np.abs(grey - (tensor[23] - low) * (255 / (high - low))).max() <= 1
    assert shown.errors == []


def wide_network(folder):
    """A network whose tensors are larger than what a page holds of one, beside its input; and what it writes."""
    chance = np.random.default_rng(0)
    net = Network("wide")
    x = net.input("data", (3, 80, 80))
    net.output(net.relu("relu", net.convolution("conv", x, chance.normal(size=(24, 3, 3, 3)), padding=1)))
    image = chance.normal(size=(1, 3, 80, 80)).astype(np.float32)
    built = build(net, "nv_small", "int8", calibrate(net, image))
    built.save(str(folder / "wide.loadable"))
    np.save(folder / "in.npy", image)
    result = nvdla.Runtime(folder / "wide.loadable").run(image)
    return folder / "wide.loadable", next(iter(result.values()))[0]


def test_the_page_reports_a_file_that_cannot_run(window, command, lenet_path, tmp_path):
    _, document = command(lenet_path)
    (tmp_path / "x.pgm").write_bytes(b"P5 nothing")
    (tmp_path / "x.pdf").write_bytes(b"%PDF")
    shown = window().open(document["url"])
    for name in ("x.pgm", "x.pdf"):
        shown.page.set_input_files("#file", tmp_path / name)
        shown.page.locator("#toast", has_text=name).filter(has_not_text="Running").wait_for()
        assert "nvdla-view-" not in shown.page.inner_text("#toast")
    assert shown.page.is_visible("#graph")


def test_a_folder_is_an_index_that_leads_on(window, command, lenet_path, tmp_path):
    (tmp_path / "one.nvdla").write_bytes(lenet_path.read_bytes())
    (tmp_path / "broken.nvdla").write_bytes(b"no loadable")
    _, document = command(tmp_path)
    shown = window().open(document["url"])
    assert shown.page.locator("#index tbody tr").count() == 2
    assert shown.page.locator("#index a").count() == 1
    shown.page.click("#index a")
    shown.page.wait_for_selector("#graph canvas")
    token = parse_qs(urlsplit(document["url"]).query)["token"][0]
    connection = http.client.HTTPConnection("127.0.0.1", document["port"], timeout=SECONDS)
    connection.request("GET", "/?" + urlencode({"token": token, "net": "../../etc/passwd"}))
    assert connection.getresponse().status == 422
    assert shown.errors == []


def test_cycles_with_another_memory_are_computed(server, lenet_path):
    status, headers, body = ask(server, path="/timing?side=0&latency=170&bandwidth=2.5")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    study = Study.of(nvdla.load(lenet_path), memory=Memory(170, 2.5))
    found = json.loads(body)
    assert found["total"] == study.schedule.total and found["bandwidth"] == 2.0  # a beat takes whole cycles
    assert found["cycles"] == [chain_cycles(study, node) for node in study.operations]
    assert sum(found["uses"].values()) == found["total"]


@pytest.mark.parametrize(
    "words",
    ["side=1&latency=1&bandwidth=1", "side=0&latency=x&bandwidth=1", "side=0&latency=1&bandwidth=nan", "side=0"],
)
def test_a_memory_that_does_not_exist_is_refused(server, words):
    status, _, body = ask(server, path=f"/timing?{words}")
    assert status == 422 and b"must be" in body


def test_sliders_of_the_served_page_ask_the_server(window, command, lenet_path):
    _, document = command(lenet_path)
    shown = window().open(document["url"])
    assert shown.value("view.sides[0].timings") == []
    shown.page.click("#tab-cycles")
    shown.page.locator("#latency-0").evaluate("(i) => { i.value = 37; i.dispatchEvent(new Event('input')) }")
    total = Study.of(nvdla.load(lenet_path), memory=Memory(370)).schedule.total
    shown.page.locator("#timing-0", has_text=f"{total:,} cycles").wait_for()
    assert shown.page.locator("#latency-0").get_attribute("aria-valuetext") == "370 cycles"
    assert shown.errors == []


def test_two_inputs_are_dropped_one_after_the_other(window, command, corpus):
    """The one that is missing is named; files that were dropped stay."""
    folder = corpus / "loadables" / "multi_in"
    path = next(iter(sorted(folder.glob("*.nvdla"))))
    import nvdla

    runtime = nvdla.Runtime(path)
    _, document = command(path)
    shown = window().open(document["url"])
    names = [tensor.name for tensor in runtime.inputs]
    assert shown.page.locator("#input option").all_inner_texts() == names
    for tensor in runtime.inputs:
        assert shown.page.locator("#input").input_value() == tensor.name
        shown.page.set_input_files(
            "#file", {"name": "a.bin", "mimeType": "application/octet-stream", "buffer": bytes(tensor.size)}
        )
        last = tensor is runtime.inputs[-1]
        shown.page.locator("#toast", has_text="has run" if last else "Now give a file for input").wait_for()
