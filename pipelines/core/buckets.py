"""Buckets: the unit of parallel work, of the memo and of a shard.

A sample belongs to the bucket that the hash of its key names, so adding, changing or removing one
sample touches one bucket whatever else there is, and a bucket is a random draw of the data. The
number of buckets is a power of two: when data outgrows it and it doubles, every bucket splits in
two.
"""

from __future__ import annotations

import hashlib

from pipelines.core.errors import HeadraceError

MAX_BUCKETS = 1 << 20
MIB = 1 << 20


def num_buckets_for(
    num_samples: int, num_bytes: int, *, target_samples: int, target_mib: float
) -> int:
    """The smallest power of two that keeps the mean bucket within both targets, at least 1.

    >>> num_buckets_for(6_000, 3_000_000, target_samples=1_000, target_mib=16)
    8
    """
    needed = max(num_samples / target_samples, num_bytes / (target_mib * MIB), 1)
    num_buckets = 1
    while num_buckets < needed:
        num_buckets *= 2
    return min(num_buckets, MAX_BUCKETS)


def bucket_of(key: str, num_buckets: int) -> int:
    """The bucket of a key: the first log2(num_buckets) bits of its SHA-256.

    Raises:
        HeadraceError: `num_buckets` is not a power of two.
    """
    if num_buckets < 1 or num_buckets & (num_buckets - 1):
        raise HeadraceError("The number of buckets must be a power of two.", found=str(num_buckets))
    head = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    return head >> (64 - (num_buckets.bit_length() - 1)) if num_buckets > 1 else 0


def split_of(content_sha256: str, *, val_fraction: float, test_fraction: float) -> str:
    """The split of a sample without a given one, by content, so that new data moves no old sample.

    Args:
        content_sha256: hexadecimal SHA-256 of the sample's bytes. It is hashed again with a salt,
            so that the draw is
            independent of any other use of the digest.
        val_fraction: share of `val`, 0..1.
        test_fraction: share of `test`, 0..1.
    """
    draw = (
        int.from_bytes(hashlib.sha256(f"split:{content_sha256}".encode()).digest()[:8], "big")
        / 2**64
    )
    if draw < test_fraction:
        return "test"
    return "val" if draw < test_fraction + val_fraction else "train"
