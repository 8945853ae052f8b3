"""TensorBoard's event files, written without TensorFlow: framed records, each a protocol buffer of scalars.

A record is its length (8 bytes), a checksum of those, the bytes, a checksum of the bytes. An `Event` has a wall time
(field 1), a step (2) and either a version (3) or a `Summary` (5), which is a list (1) of tags (1) with a number (2).
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from ssorl.utils.errors import SsorlError

LARGEST = 1 << 24  # bytes of a record; a damaged length asks for more


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC32C = _table()


class Events:
    """The file of one run in a folder of its own."""

    def __init__(self, folder: Path | str, at: int = 0) -> None:
        """Begin, or go on with the file that is there: what it has from step `at` on is cut away."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            there = sorted(folder.glob("events.out.tfevents.*"))
            path = there[-1] if there else folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
            if there:
                os.truncate(path, _end(path.read_bytes(), at))
            self.file = path.open("ab", buffering=0)  # so that nothing is left to fail when it is closed
            if not path.stat().st_size:
                self._record(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))
        except OSError as err:
            raise SsorlError(f"{folder}: cannot be written ({err.strerror}); choose another folder") from err

    def write(self, at: int, values: dict[str, float]) -> None:
        """Some scalars of one step."""
        rows = (_bytes(1, name.encode()) + b"\x15" + struct.pack("<f", _single(x)) for name, x in values.items())
        summary = b"".join(_bytes(1, row) for row in rows)
        self._record(_double(1, time.time()) + b"\x10" + _varint(at) + _bytes(5, summary))

    def _record(self, body: bytes) -> None:
        length = struct.pack("<Q", len(body))
        try:
            self.file.write(length + _checksum(length) + body + _checksum(body))
        except OSError as err:
            raise SsorlError(
                f"{self.file.name}: cannot be written ({err.strerror}); make room, then run again"
            ) from err

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def records(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Where each record ends, and what it holds; it stops at the first that is cut short or damaged."""
    at = 0
    while at + 12 <= len(raw):
        (size,) = struct.unpack("<Q", raw[at : at + 8])
        if raw[at + 8 : at + 12] != _checksum(raw[at : at + 8]):
            return
        body = raw[at + 12 : at + 12 + size] if size <= LARGEST else b""
        at += 16 + size
        if len(body) != size or raw[at - 4 : at] != _checksum(body):
            return
        yield at, body


def step(event: bytes) -> int:
    """The step of an event that `Events` wrote; 0 where it has none."""
    if event[9:10] != b"\x10":
        return 0
    number, shift = 0, 0
    for byte in event[10:]:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return number


def _end(raw: bytes, at: int) -> int:
    """Where the records before step `at` end."""
    end = 0
    for place, body in records(raw):
        if step(body) >= at:
            break
        end = place
    return end


def _checksum(raw: bytes) -> bytes:
    """CRC-32C, rotated and shifted by a constant as the format wants it."""
    crc = 0xFFFFFFFF
    for byte in raw:
        crc = CRC32C[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def _bytes(field: int, raw: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _single(number: float) -> float:
    """A number that fits 32 bits; larger ones are infinite there."""
    return number if not abs(number) > 3.4e38 else float("inf") * (1 if number > 0 else -1)
