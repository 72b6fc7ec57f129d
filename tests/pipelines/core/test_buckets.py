from collections import Counter
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.buckets import bucket_of, num_buckets_for, split_of
from pipelines.core.errors import HeadraceError


@given(st.text(max_size=30), st.integers(0, 12))
def test_a_bucket_is_within_range_and_splits_in_two_when_their_number_doubles(
    key: str, power: int
) -> None:
    bucket = bucket_of(key, 2**power)
    assert 0 <= bucket < 2**power
    assert bucket_of(key, 2 ** (power + 1)) in (2 * bucket, 2 * bucket + 1)


def test_a_bucket_is_the_head_of_the_sha256_of_the_key() -> None:
    # printf 'train/00001' | sha256sum begins with d1 = 0b1101_0001.
    assert bucket_of("train/00001", 1) == 0
    assert bucket_of("train/00001", 2) == 1
    assert bucket_of("train/00001", 16) == 0xD
    assert bucket_of("train/00001", 256) == 0xD1


def test_buckets_are_even() -> None:
    sizes = Counter(bucket_of(f"train/{index:05d}", 16) for index in range(16_000))
    assert len(sizes) == 16
    assert max(sizes.values()) < 1_150
    assert min(sizes.values()) > 850


def test_a_number_that_is_no_power_of_two_is_refused() -> None:
    with pytest.raises(HeadraceError, match="power of two"):
        bucket_of("a", 12)


@given(st.integers(0, 10**8), st.integers(0, 10**13))
def test_the_number_of_buckets_is_the_least_power_of_two_that_meets_both_targets(
    num_samples: int, num_bytes: int
) -> None:
    number = num_buckets_for(num_samples, num_bytes, target_samples=1_000, target_mib=16)
    assert number & (number - 1) == 0
    if number < 1 << 20:
        assert num_samples / number <= 1_000
        assert num_bytes / number <= 16 * 2**20
    if number > 1:
        smaller = number // 2
        assert num_samples / smaller > 1_000 or num_bytes / smaller > 16 * 2**20


def test_splits_have_the_shares_that_were_asked_for() -> None:
    shares = Counter(
        split_of(sha256(str(index).encode()).hexdigest(), val_fraction=0.1, test_fraction=0.2)
        for index in range(20_000)
    )
    assert abs(shares["val"] / 20_000 - 0.1) < 0.01
    assert abs(shares["test"] / 20_000 - 0.2) < 0.01
    assert set(shares) == {"train", "val", "test"}


def test_a_share_of_zero_is_no_sample_at_all() -> None:
    splits = {split_of(str(i), val_fraction=0, test_fraction=0) for i in range(1_000)}
    assert splits == {"train"}
