"""Archives read in place: what is readable, what is refused and why, and that nothing escapes."""

import io
import random
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.reasons import Reason
from pipelines.core.samples.archives import Archive, ReadFault, open_archive

LIMIT = 1 << 20


def zipped(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def tarred(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def reasons(archive: Archive) -> dict[str, Reason]:
    return {fault.member: fault.reason for fault in archive.faults}


def refusal(archive: Archive, member: str, max_bytes: int = LIMIT) -> Reason:
    with pytest.raises(ReadFault) as caught:
        archive.read(member, max_bytes)
    return caught.value.reason


CONTENT = {
    "a.jpg": b"one",
    "dir/b c.JPG": random.Random(1).randbytes(100_000),  # cannot be compressed
    "zeros": bytes(100_000),
    "empty": b"",
    ".hidden": b"h",
    "\N{LATIN SMALL LETTER E WITH ACUTE}/\N{CJK UNIFIED IDEOGRAPH-732B}.png": b"cat",
}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_gives_back_what_was_put_in(tmp_path: Path, method: int) -> None:
    archive = open_archive(zipped(tmp_path / "a.zip", CONTENT, method))
    assert {name: archive.read(name, LIMIT) for name in archive.members} == CONTENT
    assert archive.faults == []


@pytest.mark.parametrize(
    "form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=str
)
def test_tar_gives_back_what_was_put_in(tmp_path: Path, form: int) -> None:
    content = CONTENT | ({"long/" * 60 + "x": b"long"} if form != tarfile.USTAR_FORMAT else {})
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    archive = open_archive(path)
    assert {name: archive.read(name, LIMIT) for name in archive.members} == content
    assert archive.faults == []


def test_folders_are_no_members(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.mkdir("dir")
        archive.writestr("dir/a", b"1")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("dir")
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    assert list(open_archive(tmp_path / "a.zip").members) == ["dir/a"]
    empty = open_archive(tmp_path / "a.tar")
    assert not empty.members
    assert not empty.faults


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_link_or_device_in_a_tar_is_unsafe(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("odd")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    archive = open_archive(tmp_path / "a.tar")
    assert reasons(archive) == {"odd": Reason.UNSAFE_PATH}
    assert refusal(archive, "odd") == Reason.MISSING_FILE


def test_link_in_a_zip_is_unsafe(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    assert reasons(open_archive(tmp_path / "a.zip")) == {"link": Reason.UNSAFE_PATH}


def flag_as_encrypted(data: bytes) -> bytes:
    """Set bit 0 of the flags in the central directory, which is what readers go by."""
    at = data.index(b"PK\x01\x02") + 8
    return data[:at] + bytes([data[at] | 1]) + data[at + 1 :]


def test_encrypted_member_is_unreadable(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"secret": b"1"})
    path.write_bytes(flag_as_encrypted(path.read_bytes()))
    (fault,) = open_archive(path).faults
    assert (fault.reason, fault.detail) == (Reason.UNREADABLE, "the member is encrypted")


def test_compression_that_cannot_be_bounded_is_not_read(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"bomb": bytes(1 << 20)}, zipfile.ZIP_BZIP2)
    (fault,) = open_archive(path).faults
    assert fault.reason == Reason.UNREADABLE
    assert "compression method 12" in fault.detail


def test_member_over_the_limit_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    archive = open_archive(
        zipped(tmp_path / "a.zip", {"big": bytes(LIMIT + 1), "fits": bytes(LIMIT)})
    )
    tar = open_archive(tarred(tmp_path / "a.tar", {"big": bytes(LIMIT + 1)}))
    assert refusal(archive, "big") == Reason.TOO_MANY_BYTES
    assert refusal(tar, "big") == Reason.TOO_MANY_BYTES
    assert archive.read("fits", LIMIT) == bytes(LIMIT)


def test_bomb_that_states_a_small_size_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zipped(tmp_path / "a.zip", {"bomb": bytes(50 << 20)})
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02") + 24  # the size when unpacked, in the central directory
    data[at : at + 4] = struct.pack("<I", 1000)
    path.write_bytes(data)
    given_out = []
    make = zlib.decompressobj

    class Watched:
        def __init__(self, bits: int) -> None:
            self._inner = make(bits)

        def decompress(self, packed: bytes, limit: int) -> bytes:
            out = self._inner.decompress(packed, limit)
            given_out.append(len(out))
            return out

    monkeypatch.setattr("pipelines.core.samples.archives.zlib.decompressobj", Watched)
    assert refusal(open_archive(path), "bomb") == Reason.UNREADABLE
    assert given_out == [1001]


def test_flipped_bit_in_a_zip_is_noticed(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"a": b"x" * 1000}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert refusal(open_archive(path), "a") == Reason.UNREADABLE


@pytest.mark.parametrize("data", [b"", b"garbage", bytes(100), b"PK\x03\x04" + bytes(100)])
@pytest.mark.parametrize("name", ["a.zip", "A.ZIP", "a.tar", "A.Tar"])
def test_archive_that_is_none_is_one_fault(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    (fault,) = open_archive(path).faults
    assert (fault.member, fault.reason) == ("", Reason.UNREADABLE)


def test_cut_tar_keeps_what_stands_before_the_cut(tmp_path: Path) -> None:
    path = tarred(tmp_path / "a.tar", {name: bytes(1000) for name in "abc"})
    path.write_bytes(path.read_bytes()[: 1536 + 700])  # each member: 512 + 1024; in the data of b
    archive = open_archive(path)
    assert archive.read("a", LIMIT) == bytes(1000)
    assert reasons(archive) == {"b": Reason.TRUNCATED, "": Reason.UNREADABLE}


def test_tar_cut_between_members_is_noticed(tmp_path: Path) -> None:
    path = tarred(tmp_path / "a.tar", {name: bytes(1000) for name in "abc"})
    path.write_bytes(path.read_bytes()[:3072])
    archive = open_archive(path)
    assert list(archive.members) == ["a", "b"]
    assert reasons(archive) == {"": Reason.UNREADABLE}


def test_damaged_header_in_a_tar_is_noticed(tmp_path: Path) -> None:
    path = tarred(tmp_path / "a.tar", {name: bytes(1000) for name in "abc"})
    data = bytearray(path.read_bytes())
    data[1536:1546] = b"\xff" * 10
    path.write_bytes(data)
    archive = open_archive(path)
    assert list(archive.members) == ["a"]
    assert reasons(archive) == {"": Reason.UNREADABLE}


def test_cut_zip_is_one_fault(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", CONTENT)
    path.write_bytes(path.read_bytes()[:-100])
    archive = open_archive(path)
    assert not archive.members
    assert reasons(archive) == {"": Reason.UNREADABLE}


def test_last_of_several_members_with_one_name_counts(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for data in (b"old", b"new!"):
            info = tarfile.TarInfo("a")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    archive = open_archive(tmp_path / "a.tar")
    assert archive.read("a", LIMIT) == b"new!"
    assert reasons(archive) == {"a": Reason.AMBIGUOUS_FILE}


def test_utf8_name_in_a_zip_is_read_as_such_without_its_flag(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"xx": b"1", "yy": b"2"})
    data = path.read_bytes()
    path.write_bytes(data.replace(b"xx", "\u00e9".encode()).replace(b"yy", b"\x81z"))
    # 0x81 is u with a diaeresis in code page 437, and not UTF-8.
    assert list(open_archive(path).members) == ["\u00e9", "\u00fcz"]


def test_tar_name_that_is_no_utf8_can_be_written_and_read(tmp_path: Path) -> None:
    path = tarred(tmp_path / "a.tar", {"x?": b"1"})
    data = bytearray(path.read_bytes())
    data[:2] = b"x\xff"
    head = data[:148] + b" " * 8 + data[156:512]
    data[148:156] = b"%06o\0 " % sum(head)
    path.write_bytes(data)
    archive = open_archive(path)
    (name,) = archive.members
    assert name.encode()
    assert archive.read(name, LIMIT) == b"1"


@given(
    seed=st.integers(0, 1000),
    position=st.floats(0, 0.999),
    byte=st.integers(0, 255),
    ending=st.sampled_from(["zip", "tar"]),
)
def test_no_damage_raises_anything_but_a_read_fault(
    tmp_path_factory: pytest.TempPathFactory, seed: int, position: float, byte: int, ending: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    members = {f"{index}.jpg": random.Random(seed).randbytes(50 * index) for index in range(4)}
    path = folder / f"damaged.{ending}"
    (zipped if ending == "zip" else tarred)(path, members)
    data = bytearray(path.read_bytes())
    data[int(position * len(data))] = byte
    path.write_bytes(data)
    archive = open_archive(path)
    for name in archive.members:
        try:
            found = archive.read(name, LIMIT)
        except ReadFault:
            continue
        if ending == "zip":  # A zip has checksums.
            assert found in members.values()
