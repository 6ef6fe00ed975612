"""HTTP/1 as the gateway speaks it: uvicorn's httptools protocol with the bounds that it leaves open.

Adds: deadlines for headers, for bodies nobody reads, for clients that stop reading; bounds on URI, header count and
header size; refusals in OpenAI's error shape, written so that the client can read them; answers to HTTP/1.0 that end
with the connection instead of chunks; trailers that never become headers. Does not know what is asked or answered.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NoReturn, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import GatewayError, InvalidRequest, Overloaded, RequestTimeout
from gateway.server_cycle import Cycle, HeadersTooLarge, TurnedAway, UriTooLong, fault_of, lines_of, told
from gateway.server_limits import Limits, Waiting
from gateway.server_offers import has_body, reading_on

SLOWEST_BYTES_PER_SECOND = 65_536
# In the ASGI scope, which no client can write: only who may open the socket's file (0600) can be at the other end.
ADMIN_SOCKET = "nearhit.admin_socket"
# The same: whoever keeps the door of this path has let the request in.
LET_IN = "nearhit.let_in"
# From a request's headers, where it is turned away before anything is made of it: status, header lines and body.
Door = Callable[[Any], tuple[int, bytes] | None]
_name_of = itemgetter(0)


class Protocol(HttpToolsProtocol):
    """One connection.

    `limits` and `doors`, by path, are set by a subclass: uvicorn builds the protocol and passes only its own arguments.
    """

    limits = Limits()
    doors: Mapping[str, Door] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Typed as what they are: uvicorn's own declarations are wider.
        self._parser: Any = self.parser
        self._app: Any = self.app  # pyright: ignore[reportUnknownMemberType] - any kind of application
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = Waiting.NOTHING
        self._thrown_away = 0
        self._end_began = 0.0
        self._write_timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        self._fault: GatewayError | None = None
        self._unix = False
        self._deaf = False  # refused: what still arrives is read and thrown away
        self._draining = False
        self._in_head = False
        self._in_body = False
        self._counting = False
        self._head_fed = 0
        self._head_size = 0
        self._body_size = 0
        self._body_began = 0.0

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._unix = self.server is not None and self.server[1] is None
        if len(self.connections) > self.limits.connections + self.limits.surplus:
            self.transport.abort()
        elif len(self.connections) > self.limits.connections:
            self._refuse(Overloaded("Too many open connections.", headers=(("retry-after", "1"),)))
        else:
            self._wait_for(Waiting.HEAD, self.limits.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_for(Waiting.NOTHING)
        self._cancel_write_timer()
        self._unset_keepalive_if_required()
        queued: deque[Any] = self.pipeline
        for cycle in (self._running, *(waiting for waiting, _ in queued)):
            if cycle is not None and not cycle.response_complete:
                cast("Cycle", cycle).lost()
        queued.clear()
        super().connection_lost(exc)
        self._parser = None  # it refers back to us

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._waiting is Waiting.END:
            self._thrown_away += len(data)
        if self._deaf:
            return
        began_in_head = self._in_head
        # What is smaller than the bound cannot exceed it: header by header is counted only in the rare other case.
        self._counting = began_in_head or len(data) > self.limits.header_bytes
        self._feed(data)
        if self._deaf:
            return
        if self._in_head and began_in_head:
            self._head_fed += len(data)
            if self._head_fed > self.limits.header_bytes + self.limits.uri_bytes:
                self._refuse(HeadersTooLarge("The request's headers are too large."))
                return
        self._await_more()

    def _feed(self, data: bytes) -> None:
        while not self._deaf:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                self._upgrade()
            except httptools.HttpParserError as error:
                self._refuse(self._fault or fault_of(error))

    def _upgrade(self) -> None:
        """No other protocol is spoken here: the request is answered as it is. What follows a CONNECT cannot be read."""
        if self.scope["method"] == "CONNECT":
            self._deaf = True
            self.cycle.keep_alive = False
        else:
            self.parser = self._parser = reading_on(self, self.headers)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_timer()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._unix:
            cast("dict[str, object]", self.scope)[ADMIN_SOCKET] = True
        self._in_head = True
        self._head_fed = self._head_size = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.uri_bytes:
            self._stop(UriTooLong(f"The request's URI is longer than {self.limits.uri_bytes:,} bytes."))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: it came after the headers were acted on
        name = name.lower()
        self.headers.append((name, value))
        if self._counting:
            self._head_size += len(name) + len(value)
            if self._head_size > self.limits.header_bytes:
                self._stop(HeadersTooLarge(f"The request's headers exceed {self.limits.header_bytes:,} bytes."))

    def on_headers_complete(self) -> None:
        version: str = self._parser.get_http_version()
        self._check_head(version)
        self._in_head = False
        self._in_body = True
        self._body_size = 0
        scope = self.scope
        scope["method"] = self._parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        parsed = httptools.parse_url(self.url)
        raw_path: bytes = parsed.path or b"/"
        path = raw_path.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = parsed.query or b""
        self._begin(version, self._parser.should_keep_alive())

    def _begin(self, version: str, keeps: bool) -> None:
        """The head is read. `keeps`: the client would ask again on this connection."""
        if self._is_taken(version, keeps):
            return
        self.cycle = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=keeps and version != "1.0" and not self._draining,
            on_response=self.on_response_complete,
        )
        if self._running is None or self._running.response_complete:
            self._start_asgi_task(self.cycle, self._app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self._app))

    def _is_taken(self, version: str, keeps: bool) -> bool:
        """Whether there is nothing left to do that takes the application."""
        return keeps and self.scope["path"] in self.doors and self._is_turned_away(version)

    def _is_turned_away(self, version: str) -> bool:
        """Whether it was answered at the door, as only plain requests are, one by one, on a connection that stays."""
        scope = self.scope
        simple = version == "1.1" and scope["method"] == "POST" and not self.expect_100_continue
        busy = self._draining or not (self._running is None or self._running.response_complete)
        if not simple or busy or self.flow.write_paused:
            return False
        answer = self.doors[scope["path"]](self.headers)
        if answer is None:
            cast("dict[str, object]", scope)[LET_IN] = True
            return False
        status, rest = answer
        standing = lines_of(self.server_state.default_headers)
        self.transport.write(b"%b%b%b" % (STATUS_LINE[status], standing, rest))
        self.cycle = self._running = cast("RequestResponseCycle", _ANSWERED)
        return True

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade() and self.scope["method"] != "CONNECT" and has_body(self.headers):
            return  # it comes yet
        self._in_body = False
        if self.cycle.response_complete:
            if not self.cycle.keep_alive:  # all has come that was thrown away
                self.transport.close()
            self._await_next_request()
        else:
            super().on_message_complete()

    # The life of a request

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and self._running is self.cycle and not self.transport.is_closing():
            # Answered before its body was read (413, 415, 401): the rest is thrown away, but not for ever.
            self._unset_keepalive_if_required()
            self._wait_for_the_end()

    def shutdown(self) -> None:
        """Begin to drain: an idle connection closes, a busy one after its answer."""
        self._draining = True
        if not self._in_head:
            super().shutdown()

    # Deadlines

    def _await_more(self) -> None:
        """Arm the deadline for what the connection now waits for; what is armed already runs on."""
        if self._in_head:
            wanted = Waiting.HEAD
        elif self._in_body:
            wanted = Waiting.END if self.cycle.response_complete else Waiting.BODY
        else:
            idle = self._running is None or self._running.response_complete
            # Empty lines between requests stop the keep-alive timer and begin no request.
            wanted = Waiting.HEAD if idle and self.timeout_keep_alive_task is None else Waiting.NOTHING
        if wanted is self._waiting:
            return
        if wanted is Waiting.HEAD:
            self._wait_for(wanted, self.limits.header_timeout)
        elif wanted is Waiting.BODY:
            self._body_began = self.loop.time()
            self._wait_for(wanted, self.limits.body_timeout)
        elif wanted is Waiting.END:
            self._wait_for_the_end()
        else:
            self._wait_for(wanted)

    def _await_next_request(self) -> None:
        self._wait_for(Waiting.NOTHING)
        if not self.pipeline and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _wait_for(self, waiting: Waiting, seconds: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting = waiting
        if waiting is not Waiting.NOTHING:
            self._timer = self.loop.call_later(seconds, self._too_late)

    def _wait_for_the_end(self) -> None:
        self._thrown_away, self._end_began = 0, self.loop.time()
        self._wait_for(Waiting.END, self.limits.linger)

    def _too_late(self) -> None:
        self._timer, waiting = None, self._waiting
        self._waiting = Waiting.NOTHING
        if waiting is Waiting.END:
            self._end_too_late()
        elif self.flow.read_paused:  # it is we who do not read
            self._wait_for(waiting, self.limits.header_timeout)
        elif waiting is Waiting.HEAD:
            self._head_too_late()
        else:
            self._body_too_late()

    def _head_too_late(self) -> None:
        if self._in_head:
            seconds = f"{self.limits.header_timeout:g} s"
            self._refuse(RequestTimeout(f"The request's headers did not arrive within {seconds}."))
        else:
            self.transport.close()

    def _body_too_late(self) -> None:
        allowed = self.limits.body_timeout + self._body_size / SLOWEST_BYTES_PER_SECOND
        left = self._body_began + allowed - self.loop.time()
        if left > 0:
            self._wait_for(Waiting.BODY, left)
        else:
            self._refuse(RequestTimeout("The request's body did not arrive in time."))

    def _end_too_late(self) -> None:
        allowed = self.limits.linger + self._thrown_away / SLOWEST_BYTES_PER_SECOND
        left = self._end_began + min(allowed, self.limits.discard) - self.loop.time()
        if left > 0:
            self._wait_for(Waiting.END, left)
        else:
            self.transport.abort()

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # Refusals

    def _check_head(self, version: str) -> None:
        if len(self.headers) > self.limits.header_count:
            self._stop(HeadersTooLarge(f"The request has more than {self.limits.header_count} headers."))
        names = list(map(_name_of, self.headers))
        if version == "1.1" and names.count(b"host") != 1:
            self._stop(InvalidRequest("A request must have exactly one Host header.", code="malformed_request"))
        if b"expect" in names:
            told = (value.lower() for name, value in self.headers if name == b"expect")
            self.expect_100_continue = b"100-continue" in told
        if version == "1.0" and b"transfer-encoding" in names:
            self._stop(InvalidRequest("HTTP/1.0 knows no transfer encoding.", code="malformed_request"))
        if len(self.pipeline) >= self.limits.pipelined:
            self._stop(InvalidRequest("Too many pipelined requests.", code="malformed_request"))

    def _stop(self, fault: GatewayError) -> NoReturn:
        """Leave the parser: it turns what a callback raises into an error of its own, so the fault is kept aside."""
        self._fault = fault
        raise fault

    def _last(self) -> RequestResponseCycle | None:
        return cast("RequestResponseCycle | None", self.cycle)  # None until the first request

    def _refuse(self, fault: GatewayError) -> None:
        """Answer what cannot be read as a request, then close; answers already begun are finished first."""
        self._deaf = True
        self._wait_for(Waiting.NOTHING)
        if self._in_body and self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()  # the fault is in its body: it never starts
            self.cycle = self.pipeline[0][0] if self.pipeline else cast("RequestResponseCycle", self._running)
            self._in_body = False
        last = self._last()
        if last is None or last.response_complete:
            self._answer_and_close(fault)
        elif self._in_body and last is self._running and not last.response_started:
            last.disconnected = True
            last.message_event.set()
            self._answer_and_close(fault)
        else:
            last.keep_alive = False

    def _answer_and_close(self, fault: GatewayError) -> None:
        payload, headers = told(fault)
        lines = [STATUS_LINE[fault.http_status]]
        for name, value in (*self.server_state.default_headers, *headers, (b"connection", b"close")):
            lines += (name, b": ", value, b"\r\n")
        self.transport.write(b"".join((*lines, b"\r\n", payload)))
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # Closing with unread input would reset the connection and take the answer back.
        self.transport.write_eof()
        self.flow.resume_reading()
        self._wait_for_the_end()


_ANSWERED = TurnedAway(asyncio.Event())
