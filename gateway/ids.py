"""Identifiers: UUIDv7 (RFC 9562), so that ids sort by time. The one place that draws randomness for ids."""

import os
import time


def uuid7() -> str:
    """Canonical text form, 48 bits of milliseconds, 74 random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
