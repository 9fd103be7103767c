"""Debian's Chromium, driven through its debugging pipe: pages are opened, keys pressed, and errors collected."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 30
KEYS = {"Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35, "Tab": 9, "Enter": 13}


def chromium():
    """Where the browser is, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


# Puts the pipe's ends where the browser looks for them, and becomes the browser.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 20) for word in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page. ``errors``: exceptions, console errors, blocked or failed loads; ``requests``: what it loaded."""

    def __init__(self, profile):
        # The browser reads commands from descriptor 3 and answers on descriptor 4.
        command_out, self._commands = os.pipe()
        self._answers, answer_in = os.pipe()
        words = [sys.executable, "-c", LAUNCH, str(command_out), str(answer_in), chromium(), *FLAGS]
        self._process = subprocess.Popen(
            [*words, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(command_out, answer_in),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_out)
        os.close(answer_in)
        self._buffer, self._number, self._session = b"", 0, None
        self.errors, self.requests, self._loaded = [], [], False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path, width=1400, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._read()

    def media(self, kind="", scheme="light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def value(self, expression):
        """What an expression in the page gives. (The debugger is not bound by the page's policy.)"""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key):
        text = {"text": key} if len(key) == 1 else {}
        code = KEYS.get(key, ord(key[0].upper()))
        if key == "Enter":
            text = {"text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text):
        for letter in text:
            self.press(letter)

    def screenshot(self):
        """The page as PNG bytes."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def _read(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(end - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            data = os.read(self._answers, 1 << 16)
            assert data, "the browser has ended"
            self._buffer += data
        data, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(data)
        self._note(message)
        return message

    def _note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(parameters["args"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
