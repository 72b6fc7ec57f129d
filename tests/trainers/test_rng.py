import hashlib

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers import rng

CPU = torch.device("cpu")


def test_a_key_is_the_head_of_a_hash_of_its_typed_parts() -> None:
    digest = hashlib.sha256(b"int:1\0str:flip").digest()
    assert rng.key(1, "flip") == int.from_bytes(digest[:8]) >> 1
    assert rng.key(1) != rng.key("1")
    assert rng.key(1, 23) != rng.key(12, 3)


def test_draws_are_those_of_splitmix64() -> None:
    # The first output of SplitMix64 from state 0 is a published test value.
    golden = torch.tensor([[0x9E3779B97F4A7C15 - (1 << 64)]])
    assert rng._mix(golden).item() == 0xE220A8397B1DCDAF - (1 << 64)


@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_a_draw_depends_on_its_own_id_and_not_on_its_neighbours(key: int, ids: list[int]) -> None:
    together = rng.draw(key, torch.tensor(ids), (5, 1 << 16))
    for place, number in enumerate(ids):
        assert torch.equal(
            rng.draw(key, torch.tensor([number]), (5, 1 << 16))[:, 0], together[:, place]
        )


def test_draws_are_uniform_and_of_one_stream_an_upper_limit() -> None:
    draws = rng.draw(7, torch.arange(30_000), (3, 3))
    for stream in draws:
        counts = torch.bincount(stream, minlength=3)
        assert counts.sum() == 30_000
        assert (counts - 10_000).abs().max() < 400  # five standard deviations
    assert abs((draws[0] == draws[1]).float().mean().item() - 1 / 3) < 0.02


def test_neighbouring_keys_draw_apart() -> None:
    one, two = (rng.draw(key, torch.arange(1000), (1 << 30,)) for key in (1, 2))
    assert not (one == two).any()


def test_a_keyed_generator_gives_the_same_dropout_again() -> None:
    rng.seed_torch(3, CPU)
    first = torch.rand(4)
    torch.rand(10)
    rng.seed_torch(3, CPU)
    assert torch.equal(first, torch.rand(4))
