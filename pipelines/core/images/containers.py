"""What format a file's bytes are in, and whether they end before their own container says.

Decoders are lenient: Pillow opens a PNG without its end, a GIF cut in its second frame, and names
neither a fault. So the container's own account is read too: chunk and box lengths, no pixel. Costs
microseconds (an animated GIF: one step a 255-byte block). Nothing here raises on any input.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

# Sources: the signatures are those of the formats' specifications (ISO 10918, PNG 1.2, GIF89a,
# RFC 9649 for WebP, TIFF 6.0 and BigTIFF, AVIF 1.1, Netpbm).
_SIGNATURES = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "PPM": tuple(b"P%d%c" % (kind, space) for kind in range(1, 7) for space in b" \t\r\n"),
}
_NOT_SUPPORTED = {
    "JPEG 2000": (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),
    "JPEG XL": (b"\xff\x0a", b"\0\0\0\x0cJXL "),
    "Photoshop": (b"8BPS",),
    "icon": (b"\0\0\1\0", b"\0\0\2\0"),
    "PDF": (b"%PDF",),
    "HTML or XML": (b"<",),
    "zip": (b"PK\3\4",),
    "gzip": (b"\x1f\x8b",),
}

FORMATS = frozenset({*_SIGNATURES, "WEBP", "AVIF"})
"""Formats that are read, by Pillow's names."""

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".webp", ".bmp", ".dib", ".tif"}
    | {".tiff", ".avif", ".avifs", ".ppm", ".pgm", ".pbm", ".pnm", ".heic", ".heif", ".jp2", ".jxl"}
)
"""Endings, in lower case, of files that claim to be images."""


def format_of(data: bytes) -> str | None:
    """The name in FORMATS of the format that the content is in, whatever the file is called."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if _brands(data) & {b"avif", b"avis"}:
        return "AVIF"
    return _signed(data, _SIGNATURES)


def foreign_format_of(data: bytes) -> str | None:
    """A person's name for a known format that is not in FORMATS."""
    if _brands(data) & {b"heic", b"heix", b"hevc", b"mif1"}:
        return "HEIC"
    return _signed(data.lstrip(b"\xef\xbb\xbf \t\r\n"), _NOT_SUPPORTED)


def _signed(data: bytes, signatures: dict[str, tuple[bytes, ...]]) -> str | None:
    return next((name for name, starts in signatures.items() if data.startswith(starts)), None)


def _brands(data: bytes) -> set[bytes]:
    """Brands of an ISO base media file, which HEIC and AVIF are."""
    if data[4:8] != b"ftyp":
        return set()
    head = data[8 : min(int.from_bytes(data[:4], "big"), 256)]
    return {head[start : start + 4] for start in range(0, len(head), 4)}


def ends_early(data: bytes, image_format: str) -> bool:
    """Whether the content stops before the end that its own container announces.

    JPEG, BMP and PPM announce none (their decoders tell), so False for them.
    """
    try:
        return image_format in _ENDS and _ENDS[image_format](data) > len(data)
    except (IndexError, struct.error):  # A field was looked for behind the end.
        return True


def _png_end(data: bytes) -> int:
    """Where the end chunk ends."""
    start, kind = 8, b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, start)
        start += 12 + length
    return start


def _gif_end(data: bytes) -> int:
    """Where the trailer is, or a byte that begins no block: damage, the decoder's to judge."""
    start = 13 + _gif_palette(data[10])
    while True:
        match data[start]:
            case 0x21:  # An extension: introducer, label, blocks.
                start = _gif_blocks(data, start + 2)
            case 0x2C:  # An image: descriptor, palette, code size, blocks.
                start = _gif_blocks(data, start + 11 + _gif_palette(data[start + 9]))
            case _:
                return start


def _gif_palette(flags: int) -> int:
    """Bytes of the colour table that a flags byte announces."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _gif_blocks(data: bytes, start: int) -> int:
    """Where the chain of sub-blocks at `start` ends."""
    while data[start]:
        start += data[start] + 1
    return start + 1


def _webp_end(data: bytes) -> int:
    return 8 + int.from_bytes(data[4:8], "little")


def _boxes_end(data: bytes) -> int:
    """Where the last top-level box of an ISO base media file ends."""
    start = 0
    while start < len(data):
        length, kind = struct.unpack_from(">I4s", data, start)
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, start + 8)
        if length < 8 or not kind.isascii():  # 0: up to the end of the file; less: not a box.
            return len(data)
        start += length
    return start


def _tiff_end(data: bytes) -> int:
    """Where the first page's directory, its values and its pixel data end."""
    order = "<" if data[:2] == b"II" else ">"
    if struct.unpack_from(order + "H", data, 2)[0] != 42:
        return 0  # BigTIFF: the decoder's to judge.
    (directory,) = struct.unpack_from(order + "I", data, 4)
    (num_entries,) = struct.unpack_from(order + "H", data, directory)
    ends: list[int] = [directory + 2 + 12 * num_entries]
    extents: dict[int, tuple[int, ...]] = {}
    for start in range(directory + 2, ends[0], 12):
        tag, kind, count, at = struct.unpack_from(order + "HHII", data, start)
        num_bytes = count * _TIFF_BYTES.get(kind, 0)
        if num_bytes <= 4:  # The value stands in the entry itself.
            at = start + 8
        ends.append(at + num_bytes)
        if tag in _TIFF_EXTENTS and kind in _TIFF_CODES and ends[-1] <= len(data):
            extents[tag] = struct.unpack_from(f"{order}{count}{_TIFF_CODES[kind]}", data, at)
    for offsets, counts in ((273, 279), (324, 325)):  # Of strips, of tiles.
        pairs = zip(extents.get(offsets, ()), extents.get(counts, ()), strict=False)
        ends.extend(offset + count for offset, count in pairs)
    return max(ends)


_TIFF_EXTENTS = {273, 279, 324, 325}
_TIFF_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_TIFF_CODES = {3: "H", 4: "I"}


_ENDS: Mapping[str, Callable[[bytes], int]] = {
    "PNG": _png_end,
    "GIF": _gif_end,
    "WEBP": _webp_end,
    "AVIF": _boxes_end,
    "TIFF": _tiff_end,
}
