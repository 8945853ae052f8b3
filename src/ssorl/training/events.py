"""TensorBoard event files that a resumed training continues.

tensorboardX supplies the checksums and the protocol buffers. Opening, cutting and writing the file is our own code,
because the writers of tensorboardX 2.6.5 cannot do what a resumed run needs. They always begin a new file, so an update
that is computed again stands in two files. They buffer in a thread for up to two minutes: after 30 scalars and a
`kill -9` their file was empty. An error of that thread, such as a full disk, does not reach the caller.

A record is its length (8 bytes), the checksum of the length, an `Event` message, and the checksum of the message.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ssorl.utils.errors import SsorlError
from ssorl.utils.extras import require

MAX_RECORD = 1 << 24  # bytes; a longer record has a damaged length


class Events:
    """The event file of one run, which is the only one of its folder."""

    def __init__(self, folder: Path | str, at: int = 0) -> None:
        """Open the folder's file, or create one.

        Args:
            folder: where the file is; created if it does not exist.
            at: the update from which the training goes on; records of this update and later ones are cut away.

        Raises:
            SsorlError: tensorboardX is not installed, or the folder cannot be written.
        """
        require("tensorboard")
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            existing = sorted(folder.glob("events.out.tfevents.*"))
            path = existing[-1] if existing else folder / _new_name()
            if existing:
                os.truncate(path, _end_before(path.read_bytes(), at))
            self.file = path.open("ab", buffering=0)  # each record is one write, and closing cannot fail
            if not path.stat().st_size:
                self._append(file_version="brain.Event:2")
        except OSError as err:
            raise SsorlError(f"{folder}: cannot be written ({err.strerror}); choose another folder") from err

    def write(self, at: int, values: dict[str, float]) -> None:
        """Append the scalars of one update.

        Args:
            at: the number of updates.
            values: name -> scalar; numbers that do not fit 32 bits become infinite.

        Raises:
            SsorlError: the file cannot be written, for example because the disk is full.
        """
        self._append(step=at, summary={"value": [{"tag": tag, "simple_value": x} for tag, x in values.items()]})

    def _append(self, **fields: Any) -> None:
        body = _event_class()(wall_time=time.time(), **fields).SerializeToString()
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


def _event_class() -> Any:
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]  # protobuf makes it on import

    return Event


def _new_name() -> str:
    return f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"


def records(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the end and the message of each record, up to the first that is cut short or damaged."""
    end = 0
    while end + 12 <= len(raw):
        (size,) = struct.unpack("<Q", raw[end : end + 8])
        if raw[end + 8 : end + 12] != _checksum(raw[end : end + 8]):
            return
        body = raw[end + 12 : end + 12 + size] if size <= MAX_RECORD else b""
        end += 16 + size
        if len(body) != size or raw[end - 4 : end] != _checksum(body):
            return
        yield end, body


def _end_before(raw: bytes, at: int) -> int:
    """Return the position behind the last whole record before update `at`."""
    from google.protobuf.message import DecodeError

    event, position = _event_class(), 0
    for end, body in records(raw):
        try:
            if event.FromString(body).step >= at:
                break
        except DecodeError:  # not a file of TensorBoard's
            break
        position = end
    return position


def _checksum(raw: bytes) -> bytes:
    from tensorboardX.record_writer import masked_crc32c

    return struct.pack("<I", masked_crc32c(raw))
