"""Zip and tar archives read in place: a table of where each member lies, and bytes on demand.

The table is made by `zipfile` and `tarfile`; nothing is ever unpacked to the disk. Members are then
read by position, without a lock and without a file that stays open, from any number of threads and
of however many archives. (`ZipFile.open` counts its readers without a lock, and holds a descriptor
an archive.) Costs about 350 bytes of memory a member, and for a tar one pass over its headers.

Whatever is in an archive, nothing here leaves it or raises anything but `ReadFault`: what cannot or
must not be read is an entry with a reason.
"""

from __future__ import annotations

import os
import stat
import struct
import tarfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pipelines.core.reasons import Reason

ENDINGS = (".zip", ".tar")
"""Endings, in lower case, of the files that are archives here."""

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, then lengths of name and extra field
_METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
_UTF8_FLAG, _ENCRYPTED_FLAG = 0x800, 0x1


class ReadFault(Exception):  # noqa: N818 - a fault of the data, told as a row, is no error
    """Why a file of raw/ has no bytes to give."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class Location(NamedTuple):
    """Where a member lies in its archive."""

    offset: int
    """Of its data in a tar, of its local header in a zip."""
    num_bytes: int
    packed_bytes: int
    crc32: int
    method: int
    """Of compression, by its number in zip files; -1 for a tar."""


class Faulty(NamedTuple):
    """A member that is not read, or (with an empty name) the rest of the archive."""

    member: str
    num_bytes: int
    reason: Reason
    detail: str


@dataclass
class Archive:
    """The table of an archive."""

    path: Path
    members: dict[str, Location] = field(default_factory=dict)
    """What can be read, in the order of the archive."""
    faults: list[Faulty] = field(default_factory=list)

    def read(self, member: str, max_bytes: int) -> bytes:
        """The content of a member.

        Raises:
            ReadFault: it is not there, too large, damaged, or not what its archive says it is.
        """
        where = self.members.get(member)
        if where is None:
            raise ReadFault(Reason.MISSING_FILE, f"{self.path.name} has no member {member!r}")
        check_size(where.num_bytes, max_bytes)
        try:
            with self.path.open("rb", buffering=0) as file:
                if where.method == -1:
                    return _exactly(file.fileno(), where.offset, where.num_bytes)
                return _unzip(file.fileno(), where, max_bytes)
        except OSError as error:
            raise ReadFault(Reason.UNREADABLE, str(error)) from None

    def add(self, member: str, where: Location) -> None:
        """Note a readable member; of several with one name the last counts, as when unpacked."""
        earlier = self.members.pop(member, None)
        if earlier is not None:
            detail = "a later member of the archive has the same name"
            self.refuse(member, earlier.num_bytes, Reason.AMBIGUOUS_FILE, detail)
        self.members[member] = where

    def refuse(self, member: str, num_bytes: int, reason: Reason, detail: str) -> None:
        """Note a member that is not read."""
        self.faults.append(Faulty(member, num_bytes, reason, detail))


def check_size(num_bytes: int, max_bytes: int) -> None:
    """Refuse what is larger than the limit, before a byte of it is read.

    Raises:
        ReadFault: it is.
    """
    if num_bytes > max_bytes:
        detail = f"{num_bytes:,} bytes, and the limit is {max_bytes:,}"
        raise ReadFault(Reason.TOO_MANY_BYTES, detail)


def printable(name: str) -> str:
    r"""A name as UTF-8 can hold it: bytes that were no UTF-8 become `\udcXX`."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def open_archive(path: Path) -> Archive:
    """Make the table of an archive, whatever state it is in.

    An archive that is no archive, or ends early, has an entry with an empty name in `faults`; what
    stands before that point is there.
    """
    archive = Archive(path)
    try:
        if path.name.lower().endswith(".zip"):
            _list_zip(archive)
        else:
            _list_tar(archive)
    # What the two libraries raise on garbage is not documented: they meet every byte there is.
    except Exception as error:  # noqa: BLE001
        archive.refuse(
            "", path.stat().st_size, Reason.UNREADABLE, f"the archive is damaged: {error}"
        )
    return archive


def _list_zip(archive: Archive) -> None:
    with zipfile.ZipFile(archive.path) as listing:
        for info in listing.infolist():
            mode = info.external_attr >> 16
            if info.is_dir() or stat.S_ISDIR(mode):
                continue
            name = printable(_zip_name(info))
            refusal = _refused_in_zip(info, mode)
            if refusal:
                archive.refuse(name, info.file_size, *refusal)
            else:
                place = (info.file_size, info.compress_size, info.CRC, info.compress_type)
                archive.add(name, Location(info.header_offset, *place))


def _zip_name(info: zipfile.ZipInfo) -> str:
    """Many tools write UTF-8 without the flag that says so; `zipfile` then takes code page 437."""
    if info.flag_bits & _UTF8_FLAG:
        return info.filename
    try:
        return info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return info.filename


def _refused_in_zip(info: zipfile.ZipInfo, mode: int) -> tuple[Reason, str] | None:
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return Reason.UNSAFE_PATH, "a link or device, and no file"
    if info.flag_bits & _ENCRYPTED_FLAG:
        return Reason.UNREADABLE, "the member is encrypted"
    if info.compress_type not in _METHODS:
        known = " and ".join(_METHODS.values())
        return Reason.UNREADABLE, f"compression method {info.compress_type}: {known} ones are read"
    return None


def _list_tar(archive: Archive) -> None:
    size = archive.path.stat().st_size
    with tarfile.open(archive.path, "r:", encoding="utf-8", errors="surrogateescape") as listing:
        while (info := listing.next()) is not None:
            listing.members = []  # type: ignore[attr-defined]  # It would keep a kilobyte a member.
            if info.isdir():
                continue
            name = printable(info.name)
            refusal = _refused_in_tar(info, size)
            if refusal:
                archive.refuse(name, info.size, *refusal)
            else:
                archive.add(name, Location(info.offset_data, info.size, info.size, 0, -1))
        end = listing.offset
    # `tarfile` takes any odd header but the first for the end of the archive.
    with archive.path.open("rb") as file:
        file.seek(end)
        block = file.read(tarfile.BLOCKSIZE)
    if block != bytes(tarfile.BLOCKSIZE):
        what = "is cut" if len(block) < tarfile.BLOCKSIZE else f"is damaged at byte {end:,}"
        detail = f"the archive {what}: what followed is not known"
        archive.refuse("", size, Reason.UNREADABLE, detail)


def _refused_in_tar(info: tarfile.TarInfo, size: int) -> tuple[Reason, str] | None:
    if not info.isfile():
        return Reason.UNSAFE_PATH, "a link or device, and no file"
    if info.issparse():
        return Reason.UNREADABLE, "a sparse member"
    if info.offset_data + info.size > size:
        return Reason.TRUNCATED, "the archive is cut inside this member"
    return None


def _exactly(descriptor: int, offset: int, num_bytes: int) -> bytes:
    data = os.pread(descriptor, num_bytes, offset)
    while len(data) < num_bytes:  # The kernel gives at most 2 GiB at once.
        more = os.pread(descriptor, num_bytes - len(data), offset + len(data))
        if not more:
            raise ReadFault(Reason.TRUNCATED, "the archive ends inside this member")
        data += more
    return data


def _unzip(descriptor: int, where: Location, max_bytes: int) -> bytes:
    # The size that the archive states may be a lie, so what comes out is limited too; deflate adds
    # at most 5 bytes to 16 KiB, so a member that fits when unpacked fits when packed.
    check_size(where.packed_bytes, max_bytes + (max_bytes >> 8) + 1024)
    header = _exactly(descriptor, where.offset, _LOCAL_HEADER.size)
    signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    if signature != b"PK\x03\x04":
        raise ReadFault(Reason.UNREADABLE, "the archive is damaged: no member at the stated place")
    start = where.offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    data = _exactly(descriptor, start, where.packed_bytes)
    if where.method == zipfile.ZIP_DEFLATED:
        try:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, where.num_bytes + 1)
        except zlib.error as error:
            raise ReadFault(Reason.UNREADABLE, f"damaged in the archive: {error}") from None
    if len(data) != where.num_bytes or zlib.crc32(data) != where.crc32:
        raise ReadFault(Reason.UNREADABLE, "damaged in the archive: size or CRC-32 differ")
    return data
