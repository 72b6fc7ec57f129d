"""Copies samples out of memory-mapped shards into a batch, in native code, without Python's lock.

`gather` is compiled: find where each id lies, then copy its image, take its label, and check the
image's CRC-32C the first time the row is touched. Copying goes through memcpy; an assignment of
slices compiles into a loop over bytes and reaches a quarter of its speed. Rows lie far apart, so
each would begin with a wait for memory: they are prefetched some rows ahead, which makes tiny rows
1.5 times as fast, and large ones, of which only each page's first line is fetched, a tenth.

Compiled by numba on the first run in a checkout (about a second) and kept in `__pycache__` beside
this file, or in NUMBA_CACHE_DIR. Everything that is compiled stands in this one file, since numba
looks at no other to see whether its copy is still good. The checksum is libcrc32c's, as shipped
inside google-crc32c: it uses the processor's instruction where there is one.
"""

import ctypes
import functools
from typing import Any, no_type_check

import google_crc32c
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import carray

IGNORED_LABEL = -100
"""The label of a padded place: what torch's losses ignore, and what indexes nothing by accident."""

ALL_SOUND = -1
"""What `gather` returns when every checksum matched."""

# Columns of a table of addresses: where the four parts of a mapped shard lie in memory.
NUM_ADDRESSES = 4
_IMAGES, _LABELS, _CHECKSUMS, _VERIFIED = range(NUM_ADDRESSES)


# How far ahead of the copy memory is asked for, and how much of a row: of a large one a line of
# each page, since the processor goes on from there by itself.
_LINE_BYTES = 64
_PAGE_BYTES = 4096
_TINY_ROWS_AHEAD = 8
_LARGE_ROWS_AHEAD = 2


@functools.cache
def crc32c_address() -> int:
    """The address of `uint32_t crc32c_value(const uint8_t *data, size_t count)`."""
    # The extension module links the library; looking a name up in the one finds it in the other.
    library = ctypes.CDLL(google_crc32c._crc32c.__file__)  # noqa: SLF001
    address = ctypes.cast(library.crc32c_value, ctypes.c_void_p).value
    assert address is not None
    return address


@intrinsic
def _pointer(_context: Any, address: Any) -> Any:
    """An address as a pointer."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@intrinsic
def _copy(_context: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """Memcpy between two addresses."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(part, cgutils.voidptr_t) for part in arguments[:2])
        copy: Any = cgutils.raw_memcpy
        copy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(target, source, num_bytes), generate


@intrinsic
def _prefetch(_context: Any, address: Any) -> Any:
    """Ask for a line of memory that will be read, whether or not the address is mapped."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        int32 = ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, int32, int32, int32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], signature)
        read, keep_near, data = int32(0), int32(3), int32(1)
        line = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        builder.call(function, [line, read, keep_near, data])
        return context.get_dummy_value()

    return types.void(address), generate


@intrinsic
def _checksum(_context: Any, function: Any, address: Any, num_bytes: Any) -> Any:
    """Call `crc32c_value` by its address: were that a constant, compiled code could not be kept."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        size_t = ir.IntType(64)
        signature = ir.FunctionType(ir.IntType(32), [cgutils.voidptr_t, size_t])
        call = builder.inttoptr(arguments[0], signature.as_pointer())
        data = builder.inttoptr(arguments[1], cgutils.voidptr_t)
        return builder.call(call, [data, arguments[2]])

    return types.uint32(function, address, num_bytes), generate


@njit(nogil=True)
@no_type_check
def _locate(ids, first_ids, addresses, row_bytes):  # noqa: ANN001, ANN202
    """Where each sample lies, [m] int64: its shard, and the address of its image, 0 for padding.

    Also asks for its label and whether it was verified before.
    """
    shards = np.zeros(len(ids), np.int64)
    sources = np.zeros(len(ids), np.int64)
    shard, begin, end = 0, 0, 0
    for position in range(len(ids)):
        sample = ids[position]
        if sample < 0:
            continue
        if not begin <= sample < end:  # Ids ascend for the most part, so this is rare.
            shard = np.searchsorted(first_ids, sample, side="right") - 1
            begin = first_ids[shard]
            end = first_ids[shard + 1] if shard + 1 < len(first_ids) else np.iinfo(np.int64).max
        row = sample - begin
        shards[position] = shard
        sources[position] = addresses[shard, _IMAGES] + row * row_bytes
        _prefetch(addresses[shard, _LABELS] + row * 4)
        _prefetch(addresses[shard, _VERIFIED] + row)
    return shards, sources


@njit(nogil=True)
@no_type_check
def _prefetch_row(address, row_bytes, stride):  # noqa: ANN001, ANN202
    for offset in range(0, row_bytes, stride):
        _prefetch(address + offset)


_SIGNATURE = types.int64(
    types.int64[::1],
    types.int64[::1],
    types.int64[:, ::1],
    types.uint8[:, ::1],
    types.int64[::1],
    types.int64,
)


# With a signature it is loaded on import, and the first batch does not wait for it.
@njit(_SIGNATURE, nogil=True, cache=True)
@no_type_check  # numba reads it as another language: no annotations, calls of intrinsics
def gather(ids, first_ids, addresses, images, labels, checksum_function):  # noqa: ANN001, ANN201
    """Fill `images` and `labels` with the samples `ids`.

    Args:
        ids: [m] int64 sample ids; negative ones are padding.
        first_ids: [s] int64 ascending: the first id of each mapped shard.
        addresses: [s, NUM_ADDRESSES] int64: images (uint8 rows), labels (int32), CRC-32C (uint32),
            and one byte a row that says whether it was verified before, which is written here.
        images: [m, row_bytes] uint8, contiguous, to be filled; zeros for padding.
        labels: [m] int64, to be filled; `IGNORED_LABEL` for padding.
        checksum_function: `crc32c_address()`.

    Returns:
        `ALL_SOUND`, or the first position in `ids` whose image does not match its checksum.
    """
    num, row_bytes = images.shape
    shards, sources = _locate(ids, first_ids, addresses, row_bytes)
    stride = _LINE_BYTES if row_bytes <= _PAGE_BYTES else _PAGE_BYTES
    num_ahead = _TINY_ROWS_AHEAD if row_bytes <= _PAGE_BYTES else _LARGE_ROWS_AHEAD
    for position in range(min(num_ahead, num)):
        _prefetch_row(sources[position], row_bytes, stride)
    for position in range(num):
        if position + num_ahead < num:
            _prefetch_row(sources[position + num_ahead], row_bytes, stride)
        if not sources[position]:
            images[position, :] = 0
            labels[position] = IGNORED_LABEL
            continue
        place = images.ctypes.data + position * row_bytes
        shard = shards[position]
        row = ids[position] - first_ids[shard]
        _copy(place, sources[position], row_bytes)
        labels[position] = carray(_pointer(addresses[shard, _LABELS]), row + 1, np.int32)[row]
        verified = carray(_pointer(addresses[shard, _VERIFIED]), row + 1, np.uint8)
        if not verified[row]:
            expected = carray(_pointer(addresses[shard, _CHECKSUMS]), row + 1, np.uint32)[row]
            if _checksum(checksum_function, place, row_bytes) != expected:
                return position
            verified[row] = 1
    return ALL_SOUND
