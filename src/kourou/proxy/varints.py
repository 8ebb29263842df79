"""Numbers of protobuf's wire format, for what is read and written without generated classes.

Source: protobuf's encoding, "Base 128 varints".
"""

from __future__ import annotations

from typing import Final

MORE: Final = 0x80
"""Bit of a byte that another one of the same number follows."""
READ_BYTES_MAX: Final = 5
_TWO_BYTES_END: Final = 1 << 14
_BYTE: Final = tuple(bytes((number,)) for number in range(MORE))


def encode_varint(number: int) -> bytes:
    """Return a number that is not negative."""
    if number < MORE:
        return _BYTE[number]
    if number < _TWO_BYTES_END:  # most lengths
        return bytes((number & 0x7F | MORE, number >> 7))
    encoded = bytearray()
    while number >= MORE:
        encoded.append(number & 0x7F | MORE)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 35 bits and the position after it.

    Raises:
        IndexError: it is cut off or longer.
    """
    number = 0
    for shift in range(0, 7 * READ_BYTES_MAX, 7):
        byte = data[at]
        at += 1
        if byte < MORE:
            return number | byte << shift, at
        number |= (byte & 0x7F) << shift
    raise IndexError
