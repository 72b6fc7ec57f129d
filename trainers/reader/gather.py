"""Copies samples out of memory-mapped shards into a batch, in native code, without Python's lock.

`gather` is one compiled loop: find the shard of an id, copy its image, take its label, and check
the image's CRC-32C the first time the row is touched. Copying goes through memcpy, which reaches
the speed of memory for rows of any size; an assignment of slices compiles into a loop over bytes
and reaches a quarter of it.

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
def _checksum(_context: Any, function: Any, address: Any, num_bytes: Any) -> Any:
    """Call `crc32c_value` by its address: were that a constant, compiled code could not be kept."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        size_t = ir.IntType(64)
        signature = ir.FunctionType(ir.IntType(32), [cgutils.voidptr_t, size_t])
        call = builder.inttoptr(arguments[0], signature.as_pointer())
        data = builder.inttoptr(arguments[1], cgutils.voidptr_t)
        return builder.call(call, [data, arguments[2]])

    return types.uint32(function, address, num_bytes), generate


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
    row_bytes = images.shape[1]
    target = images.ctypes.data
    for position in range(ids.shape[0]):
        sample = ids[position]
        place = target + position * row_bytes
        if sample < 0:
            images[position, :] = 0
            labels[position] = IGNORED_LABEL
            continue
        shard = np.searchsorted(first_ids, sample, side="right") - 1
        row = sample - first_ids[shard]
        _copy(place, addresses[shard, _IMAGES] + row * row_bytes, row_bytes)
        labels[position] = carray(_pointer(addresses[shard, _LABELS]), row + 1, np.int32)[row]
        verified = carray(_pointer(addresses[shard, _VERIFIED]), row + 1, np.uint8)
        if not verified[row]:
            expected = carray(_pointer(addresses[shard, _CHECKSUMS]), row + 1, np.uint32)[row]
            if _checksum(checksum_function, place, row_bytes) != expected:
                return position
            verified[row] = 1
    return ALL_SOUND
