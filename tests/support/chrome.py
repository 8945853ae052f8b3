"""A headless Chromium, driven by the DevTools protocol over a pipe with the standard library only."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from support.clock import patience

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-dev-shm-usage"
FLAGS += " --no-first-run --disable-extensions --disable-sync --hide-scrollbars --remote-debugging-pipe"


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chrome:
    """A browser with one tab. `events` holds all events that it reported, oldest first."""

    def __init__(self, path: str, profile: str) -> None:
        ends = [*os.pipe(), *os.pipe()]
        # The browser expects its ends as 3 and 4. Our ends are moved away first, so that none is overwritten.
        far = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in ends]
        for fd in ends:
            os.close(fd)
        theirs_in, self.into, self.out, theirs_out = far
        moves = [(os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4)]
        moves += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        argv = [path, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
        self.pid = os.posix_spawn(path, argv, dict(os.environ), file_actions=moves, setpgroup=0)
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.count, self.session, self.events = b"", 0, None, []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params):
        """Send a command and wait for its answer."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.into, json.dumps(message).encode() + b"\0")
        return self._until(lambda m: m.get("id") == self.count)["result"]

    def _until(self, wanted):
        """Return the next message for which `wanted` is true."""
        deadline = time.monotonic() + patience()
        while True:
            while b"\0" in self.buffer:
                raw, self.buffer = self.buffer.split(b"\0", 1)
                message = json.loads(raw)
                if "error" in message:
                    raise RuntimeError(message["error"])
                if "method" in message:
                    self.events.append(message)
                if wanted(message):
                    return message
            if not select.select([self.out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"waited {patience():.0f} s for the browser in vain")
            part = os.read(self.out, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self.buffer += part

    def open(self, path, width=1100, height=900, dark=False, mobile=False) -> None:
        """Load a file in a window of this size and wait until it has loaded."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self("Emulation.setEmulatedMedia", features=scheme)
        self.events.clear()
        self("Page.navigate", url=path.as_uri() if hasattr(path, "as_uri") else path)
        if not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self._until(lambda m: m.get("method") == "Page.loadEventFired")

    def js(self, expression: str):
        """Return the value of an expression in the page; a promise is awaited."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def point(self, x: float, y: float) -> None:
        self("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def settle(self) -> None:
        """Wait until all transitions and animations of the page have ended."""
        self.js("Promise.all(document.getAnimations().map(a => a.finished)).then(() => 0)")

    def when(self, condition: str) -> None:
        """Wait until a change of the page makes a JavaScript condition true."""
        self.js(
            f"""new Promise(done => {{
              const look = () => {{ if ({condition}) {{ watch.disconnect(); done(0); }} }};
              const watch = new MutationObserver(look);
              watch.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
              look();
            }})"""
        )

    def download(self, folder: Path, click: Callable[[], object]) -> Path:
        """Return the file that a click downloads into a folder, when it is complete."""
        self("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder), eventsEnabled=True)
        before = len(self.events)
        click()

        def over(message: dict) -> bool:
            known = message.get("method") == "Browser.downloadProgress"
            return known and message["params"]["state"] in ("completed", "canceled")

        last = next((m for m in self.events[before:] if over(m)), None) or self._until(over)
        began = next(m for m in self.events[before:] if m["method"] == "Browser.downloadWillBegin")
        assert last["params"]["state"] == "completed", began
        return folder / began["params"]["suggestedFilename"]

    def picture(self, path) -> None:
        """Write a PNG of the whole page."""
        answer = self("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """Return console errors, exceptions and violations of the content security policy since the page was opened."""
        self.js("0")  # the answer comes after all earlier events
        out = [e["params"]["entry"]["text"] for e in self.events if e["method"] == "Log.entryAdded"]
        out += [str(e["params"]) for e in self.events if e["method"] == "Runtime.exceptionThrown"]
        out += [str(e["params"]["args"]) for e in self.events if e["method"] == "Runtime.consoleAPICalled"]
        return out

    def requests(self) -> list[str]:
        """Return the requested addresses, except the page itself and data inside it."""
        asked = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("data:", "about:"))]

    def close(self) -> None:
        try:
            self.session = None
            self("Browser.close")
            while select.select([self.out], [], [], patience())[0] and os.read(self.out, 1 << 20):
                pass  # until the browser closes the pipe
        except (OSError, RuntimeError, TimeoutError):
            pass
        finally:
            for fd in (self.out, self.into):
                os.close(fd)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its own group: the browser and its children
        os.waitpid(self.pid, 0)
