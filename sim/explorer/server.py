"""The explorer's server: three addresses on this machine alone, a question at a time, nothing kept.

A page from elsewhere cannot ask it: the name by which it is addressed has to be the machine's own (a foreign name
that resolves to 127.0.0.1 is refused), browsers say which page a question comes from (`Origin`, `Sec-Fetch-Site`) and
only the explorer's own is answered, replies carry no permission for other origins, and questions change nothing.
Questions are those that the page's controls can ask, and few of them wait at a time: both bound the work.
"""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prestep.sim.errors import InputError, PrestepError
from prestep.sim.explorer import page
from prestep.sim.explorer.answers import Explorer, once
from prestep.sim.tools import crash

LOOPBACK = "127.0.0.1"
MOST_WAITING = 8  # questions, that which is being answered among them
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Server(ThreadingHTTPServer):
    """Answers questions of one explorer's page on a port of the loopback interface (0: a free one)."""

    daemon_threads = True

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        self.explorer = explorer
        self.text = page.render(explorer).encode()
        self.one = (
            threading.Lock()
        )  # predictions take all of a core: one after the other is as fast
        self.room = threading.BoundedSemaphore(MOST_WAITING)
        try:
            super().__init__((LOOPBACK, port), Handler)
        except OSError as error:
            raise InputError.of(
                "command line",
                "--port",
                f"{port}: {error.strerror}",
                "a free port; 0 finds one",
            ) from None

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no mistake."""


class Handler(BaseHTTPRequestHandler):
    """GET /, GET /answer?KEY=VALUE&... and GET /step?KEY=VALUE&..., the step time of an answer alone."""

    server: Server
    server_version, sys_version = "prestep", ""
    timeout = 30  # of a connection that says nothing

    def do_GET(self) -> None:
        host = self.headers.get("Host", "")
        if host not in (
            f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")
        ):
            self._send(
                HTTPStatus.FORBIDDEN, b"not the name of this server\n", "text/plain"
            )
            return
        if self._foreign(host):
            self._send(HTTPStatus.FORBIDDEN, b"asked by another page\n", "text/plain")
            return
        asked = urlsplit(self.path)
        if asked.path == "/":
            self._send(HTTPStatus.OK, self.server.text, "text/html; charset=utf-8")
        elif asked.path in ("/answer", "/step"):
            status, told = self._answer(asked.query, asked.path == "/step")
            self._send(status, json.dumps(told).encode(), "application/json")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"no such page\n", "text/plain")

    def _foreign(self, host: str) -> bool:
        """Whether a browser says that another page asks; a link to the page itself may be followed from anywhere."""
        if self.headers.get("Origin", f"http://{host}") != f"http://{host}":
            return True
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        followed = self.headers.get("Sec-Fetch-Mode") == "navigate"
        return site not in ("same-origin", "none") and not (
            followed and urlsplit(self.path).path == "/"
        )

    def _answer(self, query: str, alone: bool) -> tuple[HTTPStatus, dict[str, Any]]:
        try:
            asked = once(parse_qs(query, keep_blank_values=True, max_num_fields=200))
            self.server.explorer.check(asked)
            return self._in_turn(asked, alone)
        except (
            PrestepError,
            ValueError,
        ) as error:  # ValueError: more fields than a page has
            return HTTPStatus.BAD_REQUEST, {"mistakes": str(error)}
        except Exception as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"mistakes": crash.message(error)}

    def _in_turn(
        self, asked: dict[str, str], alone: bool
    ) -> tuple[HTTPStatus, dict[str, Any]]:
        """The answer after those that wait already; too many are sent away."""
        server = self.server
        if not server.room.acquire(blocking=False):
            busy = "too many questions at once: ask again in a moment"
            return HTTPStatus.SERVICE_UNAVAILABLE, {"mistakes": busy}
        try:
            with server.one:
                explorer = server.explorer
                told = explorer.step(asked) if alone else explorer.answer(asked)
                return HTTPStatus.OK, told
        finally:
            server.room.release()

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what is asked is on the page."""
