"""Server-sent events from bytes, incrementally, within bounds.

Knows: the event stream format of the HTML standard (LF, CR and CRLF, one BOM, comments, many data lines) under any cut
into packets. Does not know: JSON, OpenAI, sockets, time.
"""

MAX_LINE = 1 << 20
MAX_EVENT = 4 << 20
_BOM = b"\xef\xbb\xbf"


class StreamGarbage(ValueError):
    """Bytes that no stream of ours can hold: a line or an event beyond its bound, or data that is not JSON."""


class EventParser:
    """Feed packets, get the data of each event that is complete. An event that the end of input cut is never given out.

    Comments and fields other than `data` are dropped, and so are events named `ping` (keep-alives of some servers).
    """

    def __init__(self, *, max_line: int = MAX_LINE, max_event: int = MAX_EVENT) -> None:
        self._max_line = max_line
        self._max_event = max_event
        self._tail: list[bytes] = []
        self._tail_size = 0
        self._data: list[bytes] = []
        self._data_size = 0
        self._name = b""
        self._after_cr = False
        self._head: bytes | None = b""
        self._failure: StreamGarbage | None = None

    def feed(self, packet: bytes) -> list[bytes]:
        """Raises StreamGarbage when a bound is passed, after the events before it have been given out."""
        if self._failure is not None:
            raise self._failure
        if self._head is None and (plain := self._plain(packet)) is not None:
            return plain
        events: list[bytes] = []
        try:
            self._feed(packet, events)
        except StreamGarbage as error:
            self._failure = error
            if not events:
                raise
        return events

    def _plain(self, packet: bytes) -> list[bytes] | None:
        """The data of a packet of whole plain events, as nearly all packets are; each is one line and a blank one."""
        if not packet.startswith(b"data: ") or not packet.endswith(b"\n\n") or len(packet) > self._max_line:
            return None
        if self._tail or self._data or self._name or self._after_cr or b"\r" in packet:
            return None
        found = packet[6:-2].split(b"\n\ndata: ")
        return found if packet.count(b"\n") == 2 * len(found) else None

    def _feed(self, packet: bytes, events: list[bytes]) -> None:
        if self._head is not None:
            packet = self._without_bom(packet)
        if self._after_cr and packet:
            self._after_cr = False
            if packet[0] == 0x0A:
                packet = packet[1:]
        if b"\r" in packet:
            self._after_cr = packet[-1] == 0x0D
            packet = packet.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in packet:
            self._keep(packet)
            return
        if self._tail:
            self._tail.append(packet)
            packet = b"".join(self._tail)
            self._tail.clear()
            self._tail_size = 0
        lines = packet.split(b"\n")
        rest = lines.pop()
        self._read(lines, events)
        if rest:
            self._keep(rest)

    def done_at_end(self) -> bool:
        """Whether what stands unfinished at the end of input is `[DONE]` (some servers leave out its blank line)."""
        if self._tail:
            lines = [b"".join(self._tail), b""]
            self._tail.clear()
        else:
            lines = [b""]
        events: list[bytes] = []
        self._read(lines, events)
        return events == [b"[DONE]"]

    def _without_bom(self, packet: bytes) -> bytes:
        head = (self._head or b"") + packet
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_BOM)

    def _keep(self, piece: bytes) -> None:
        self._tail_size += len(piece)
        if self._tail_size > self._max_line:
            raise StreamGarbage(f"sent a line longer than {self._max_line} bytes")
        if piece:
            self._tail.append(piece)

    def _read(self, lines: list[bytes], events: list[bytes]) -> None:
        for line in lines:
            if not line:
                if self._data:
                    self._dispatch(events)
                self._name = b""
            elif line.startswith(b"data:"):
                self._add(line[6:] if line[5:6] == b" " else line[5:])
            elif line == b"data":
                self._add(b"")
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif len(line) > self._max_line:
                raise StreamGarbage(f"sent a line longer than {self._max_line} bytes")

    def _add(self, value: bytes) -> None:
        self._data_size += len(value) + 1
        if len(value) > self._max_line:
            raise StreamGarbage(f"sent a line longer than {self._max_line} bytes")
        if self._data_size > self._max_event:
            raise StreamGarbage(f"sent an event longer than {self._max_event} bytes")
        self._data.append(value)

    def _dispatch(self, events: list[bytes]) -> None:
        data = self._data
        if self._name != b"ping":
            events.append(data[0] if len(data) == 1 else b"\n".join(data))
        data.clear()
        self._data_size = 0
