"""Protobuf's wire format, as far as Chakra's traces need it: read and written by hand, without a library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number that is too long")


def packed(data: bytes) -> list[int]:
    """Numbers written one after the other."""
    values, at = [], 0
    while at < len(data):
        value, at = varint(data, at)
        values.append(value)
    return values


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message.

    Raises
    ------
    ValueError, IndexError
        If the message is cut off, or has a type of the wire that is none.
    """
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(message, at)
            yield key >> 3, value
        elif wire == 2:
            length, at = varint(message, at)
            if at + length > len(message):
                raise ValueError("cut off")
            yield key >> 3, message[at : at + length]
            at += length
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            yield key >> 3, int.from_bytes(message[at : at + size], "little")
            at += size
        else:
            raise ValueError("no such wire type")


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return _encoded(field << 3) + _encoded(value & (1 << 64) - 1)


def text(field: int, value: bytes | str) -> bytes:
    """A field of bytes, a text or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return _encoded(field << 3 | 2) + _encoded(len(raw)) + raw


def message(body: bytes) -> bytes:
    """A message with its length before it."""
    return _encoded(len(body)) + body


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
