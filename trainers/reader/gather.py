"""Copies samples out of memory-mapped shards into a batch, in native code, without Python's lock.

`gather` is compiled: find where each id lies, then copy the image, check its CRC-32C the first time
the row is touched, and take its label. What its speed rests on (measured on a Zen 4 machine):

- Rows lie far apart, so each would begin with a wait for memory: they are asked for ahead of the
  copy. That makes tiny rows 1.9 times as fast.
- Large rows are written past the caches, which a ring of batches would only fall out of again, and
  so are not read from memory before they are overwritten: 1.2 times as fast as memcpy.
- Others go through memcpy; an assignment of slices compiles into a loop over bytes and reaches a
  quarter of its speed.

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

NOT_MAPPED = -2
"""What `gather` returns when a sample lies in a shard that is not mapped; nothing was copied."""

# Columns of a table of addresses: where the four parts of a mapped shard lie in memory.
NUM_ADDRESSES = 4
_IMAGES, _LABELS, _CHECKSUMS, _VERIFIED = range(NUM_ADDRESSES)


_LINE_BYTES = 64
_PAGE_BYTES = 4096
# How far ahead of the copy memory is asked for. Of a row longer than a page, one line of each page
# is, since the processor goes on from there by itself.
_TINY_ROWS_AHEAD = 12
_LARGE_ROWS_AHEAD = 2
_STREAM_BYTES_AHEAD = 12_288
_NUM_LINES = 4  # Copied at a time where rows are streamed.


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
def _stream_lines(_context: Any, target: Any, source: Any) -> Any:
    """Copy `_NUM_LINES` lines past the caches; `target` is aligned to a line."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(ir.IntType(8), _LINE_BYTES).as_pointer()
        offsets = [
            ir.Constant(ir.IntType(64), number * _LINE_BYTES) for number in range(_NUM_LINES)
        ]
        targets, sources = (
            [builder.inttoptr(builder.add(part, offset), line) for offset in offsets]
            for part in arguments
        )
        values = [builder.load(place, align=1) for place in sources]
        past_caches = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        for value, place in zip(values, targets, strict=True):
            stored = builder.store(value, place, align=_LINE_BYTES)
            stored.set_metadata("nontemporal", past_caches)
        return context.get_dummy_value()

    return types.void(target, source), generate


@intrinsic
def _fence(_context: Any) -> Any:
    """Have all that was streamed be in memory before anything that comes after."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


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

    Also whether all are mapped. Asks for labels and whether rows were verified before.
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
        if not addresses[shard, _IMAGES]:
            return shards, sources, False
        row = sample - begin
        shards[position] = shard
        sources[position] = addresses[shard, _IMAGES] + row * row_bytes
        _prefetch(addresses[shard, _LABELS] + row * 4)
        _prefetch(addresses[shard, _VERIFIED] + row)
    return shards, sources, True


@njit(nogil=True)
@no_type_check
def _stream(target, source, num_bytes, following):  # noqa: ANN001, ANN202
    """Copy a row past the caches, asking for what comes next, at last for the row `following`."""
    for offset in range(0, num_bytes, _NUM_LINES * _LINE_BYTES):
        ahead = offset + _STREAM_BYTES_AHEAD
        coming = source + ahead if ahead < num_bytes else following + ahead - num_bytes
        for line in range(_NUM_LINES):
            _prefetch(coming + line * _LINE_BYTES)
        _stream_lines(target + offset, source + offset)


@njit(nogil=True)
@no_type_check
def _prefetch_row(address, row_bytes, stride):  # noqa: ANN001, ANN202
    for offset in range(0, row_bytes, stride):
        _prefetch(address + offset)


@njit(nogil=True)
@no_type_check
def _is_sound(addresses, row, source, row_bytes, checksum_function):  # noqa: ANN001, ANN202
    """Whether a row matches its checksum, which is computed the first time only."""
    verified = carray(_pointer(addresses[_VERIFIED]), row + 1, np.uint8)
    if verified[row]:
        return True
    expected = carray(_pointer(addresses[_CHECKSUMS]), row + 1, np.uint32)[row]
    if _checksum(checksum_function, source, row_bytes) != expected:
        return False
    verified[row] = 1
    return True


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
        first_ids: [s] int64 ascending: the first id of each shard.
        addresses: [s, NUM_ADDRESSES] int64: images (uint8 rows), labels (int32), CRC-32C (uint32),
            and one byte a row that says whether it was verified before, which is written here;
            zeros where a shard is not mapped.
        images: [m, row_bytes] uint8, contiguous, to be filled; zeros for padding.
        labels: [m] int64, to be filled; `IGNORED_LABEL` for padding.
        checksum_function: `crc32c_address()`.

    Returns:
        `ALL_SOUND`, or the first position in `ids` whose image does not match its checksum, before
        which all is filled; or `NOT_MAPPED`.
    """
    num, row_bytes = images.shape
    shards, sources, are_mapped = _locate(ids, first_ids, addresses, row_bytes)
    if not are_mapped:
        return NOT_MAPPED
    targets = images.ctypes.data
    is_tiny = row_bytes <= _PAGE_BYTES
    is_streamed = not is_tiny and not row_bytes % (_NUM_LINES * _LINE_BYTES) and not targets % 64
    stride = _LINE_BYTES if is_tiny else _PAGE_BYTES
    num_ahead = _TINY_ROWS_AHEAD if is_tiny else _LARGE_ROWS_AHEAD
    for position in range(num):
        if not is_streamed and position + num_ahead < num:
            _prefetch_row(sources[position + num_ahead], row_bytes, stride)
        source = sources[position]
        if not source:
            images[position, :] = 0
            labels[position] = IGNORED_LABEL
            continue
        shard = shards[position]
        row = ids[position] - first_ids[shard]
        if is_streamed:
            following = sources[min(position + 1, num - 1)]
            _stream(targets + position * row_bytes, source, row_bytes, following)
        else:
            _copy(targets + position * row_bytes, source, row_bytes)
        # After the copy, which asks for memory ahead: now the row is in the caches.
        if not _is_sound(addresses[shard], row, source, row_bytes, checksum_function):
            return position
        labels[position] = carray(_pointer(addresses[shard, _LABELS]), row + 1, np.int32)[row]
    _fence()
    return ALL_SOUND
