"""A headless Chromium that tests steer: pages at any width, in both themes, with real keys; what its console says.

It is spoken to over two pipes in the DevTools protocol (https://chromedevtools.github.io/devtools-protocol), JSON that
ends with a zero byte: nothing beside Python and Chromium is needed.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
    "--remote-debugging-pipe",
)
PATIENCE = 180.0  # s: until a page has loaded or a script has ended, on a busy machine


@dataclass
class Page:
    """One page in a browser."""

    commands: int
    replies: int
    session: str = ""
    number: int = 0
    rest: bytes = b""
    complaints: list[str] = field(default_factory=list)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol, and what it answers.

        Raises
        ------
        RuntimeError
            With the browser's error.
        TimeoutError
            If it does not answer.
        """
        self.number += 1
        asked = {"id": self.number, "method": method, "params": params}
        if self.session:
            asked["sessionId"] = self.session
        os.write(self.commands, json.dumps(asked).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            told = self._read(until)
            if told.get("id") == self.number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return dict(told["result"])
        raise TimeoutError(method)

    def _read(self, until: float) -> dict[str, Any]:
        """The next message, which has to come until then; errors of the page's are kept."""
        while b"\0" not in self.rest:
            left = max(0.0, until - time.monotonic())
            if not select.select([self.replies], [], [], left)[0]:
                raise TimeoutError("the browser is silent")
            part = os.read(self.replies, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self.rest += part
        text, _, self.rest = self.rest.partition(b"\0")
        told: dict[str, Any] = json.loads(text)
        if told.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(told["params"]["exceptionDetails"]))
        if told.get("method") == "Log.entryAdded":
            self.complaints.append(str(told["params"]["entry"]))
        if told.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(told["params"]))
        return told

    def open(
        self, address: str, wide: int, high: int = 900, theme: str = "light"
    ) -> None:
        """Load a page in a window of so many pixels, in the theme that the system has ("light", "dark")."""
        self.resize(wide, high)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": theme}])  # fmt: skip
        self.ask("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.complaints.clear()  # of the page before
        self.ask("Page.navigate", url=address)
        self.until(
            "document.readyState === 'complete' && location.href !== 'about:blank'"
        )

    def resize(self, wide: int, high: int) -> None:
        """A window of so many pixels; a narrow one is a phone's."""
        self.ask("Emulation.setDeviceMetricsOverride", width=wide, height=high,
                 deviceScaleFactor=1, mobile=wide < 600)  # fmt: skip

    def value(self, script: str) -> Any:
        """What an expression is in the page; a promise is waited for.

        Raises
        ------
        RuntimeError
            With what it threw.
        """
        told = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in told:
            raise RuntimeError(str(told["exceptionDetails"]))
        return told["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + PATIENCE
        while not self.value(script):
            if time.monotonic() > until:
                raise TimeoutError(script)
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """A key of the keyboard, to what has the focus."""
        code = f"Key{key.upper()}" if key.isalpha() and len(key) == 1 else key
        number = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}.get(key)
        more = {"windowsVirtualKeyCode": number or ord(key[0].upper())}
        text = {"text": key} if len(key) == 1 else {}
        self.ask(
            "Input.dispatchKeyEvent", type="keyDown", key=key, code=code, **more, **text
        )
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=code, **more)

    def dom(self, address: str, ended: str, wide: int = 800, high: int = 600) -> str:
        """The page as it is once an expression is true; an error in it ends the wait, too.

        Raises
        ------
        RuntimeError
            With what its console says.
        """
        self.open(address, wide, high)
        self.until(f"document.title.startsWith('ERROR') || {ended}")
        if self.complaints:
            raise RuntimeError(str(self.complaints))
        return str(self.value("document.documentElement.outerHTML"))

    def print(self, path: Path) -> None:
        """Write the page as it is on paper."""
        made = self.ask("Page.printToPDF", preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def picture(self, path: Path) -> None:
        """Write what the window shows."""
        made = self.ask("Page.captureScreenshot")
        path.write_bytes(base64.b64decode(made["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A browser with one page, which ends with the block."""
    to_browser, commands = os.pipe()
    replies, from_browser = os.pipe()
    # Its helper processes outlive it for a moment and may still write into its profile.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # The protocol is spoken on descriptors 3 and 4; sh takes no number of two digits.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        command = [
            "bash",
            "-c",
            shell,
            str(CHROMIUM),
            *OPTIONS,
            f"--user-data-dir={folder}",
        ]
        child = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        try:
            page = Page(commands, replies)
            target = page.ask("Target.createTarget", url="about:blank")["targetId"]
            made = page.ask("Target.attachToTarget", targetId=target, flatten=True)
            page.session = made["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                page.ask(f"{domain}.enable")
            yield page
        finally:
            os.close(commands)
            os.close(replies)
            child.kill()  # nothing of it is kept
            child.wait()
