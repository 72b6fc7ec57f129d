import json
import math
import struct
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainers.chain import Chain, Link, digest_of_ids

WEIGHTS = "ab" * 32
STEPS: tuple[tuple[int, float, str | None], ...] = (
    (2**64 - 1, 0.5, None),
    (9, 0.25, WEIGHTS),
    (0, -0.0, None),
)


def fed(*steps: tuple[int, float, str | None]) -> Chain:
    chain = Chain()
    for ids, loss, weights in steps:
        chain.add(ids, loss, weights)
    return chain


def test_the_chain_is_the_documented_one() -> None:
    link = sha256(b"headrace chain 2").digest()
    assert Chain().digest == link.hex()
    link = sha256(link + struct.pack("<qQd", 0, 2**64 - 1, 0.5)).digest()
    assert fed(STEPS[0]).digest == link.hex()
    link = sha256(link + struct.pack("<qQd", 1, 9, 0.25) + bytes.fromhex(WEIGHTS)).digest()
    assert fed(*STEPS[:2]).digest == link.hex()


def test_any_difference_breaks_the_chain() -> None:
    variants = [
        STEPS,
        STEPS[:2],
        (STEPS[1], STEPS[0], STEPS[2]),
        ((8, 0.5, None), *STEPS[1:]),
        ((2**64 - 1, 0.5000000000000001, None), *STEPS[1:]),
        (*STEPS[:2], (0, 0.0, None)),
        (*STEPS[:2], (0, -0.0, WEIGHTS)),
        (STEPS[0], (9, 0.25, "cd" * 32), STEPS[2]),
    ]
    assert len({fed(*variant).digest for variant in variants}) == len(variants)


def test_ids_are_named_with_their_order_and_number() -> None:
    variants = [[1, 2, 3], [1, 3, 2], [1, 2], [1, 2, -1], []]
    digests = {digest_of_ids(np.array(ids, np.int64)) for ids in variants}
    assert len(digests) == len(variants)
    body = struct.pack("<q3q", 3, 1, 2, 3)
    expected = int.from_bytes(sha256(body).digest()[:8], "little")
    assert digest_of_ids(np.array([[1], [2], [3]])) == expected


def test_ids_of_another_width_are_a_mistake() -> None:
    with pytest.raises(TypeError, match="int64"):
        digest_of_ids(np.array([1], np.int32))


def test_a_step_is_found_with_all_its_bits() -> None:
    chain = fed(*STEPS)
    assert chain.link(1) == Link(9, struct.pack("<d", 0.25), WEIGHTS)
    assert chain.link(0) == Link(2**64 - 1, struct.pack("<d", 0.5), None)
    assert math.copysign(1, chain.link(2).loss) == -1


def test_a_chain_goes_on_from_its_state_through_json() -> None:
    before = fed(*STEPS[:2])
    chain = Chain.from_state(json.loads(json.dumps(before.state())), before.tensors())
    chain.add(*STEPS[2])
    assert chain.summary() == fed(*STEPS).summary() == {"digest": chain.digest, "num_steps": 3}
    assert [chain.link(step) for step in range(3)] == [fed(*STEPS).link(step) for step in range(3)]


def test_a_step_adds_sixteen_bytes_to_a_checkpoint() -> None:
    sizes = [
        sum(tensor.nbytes for tensor in fed(*[STEPS[0]] * num).tensors().values())
        for num in (0, 1000)
    ]
    assert sizes == [0, 16_000]


def test_a_file_holds_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "steps.parquet"
    chain = fed(*STEPS, (1, math.inf, None), (2, math.nan, None))
    chain.write(path)
    assert Chain.read(path).digest == chain.digest
    chain.write(tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == path.read_bytes()
    assert pq.read_table(path).slice(1, 1).to_pylist() == [
        {"step": 1, "ids": 9, "loss": 0.25, "weights_sha256": WEIGHTS}
    ]


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"step": [1]}), tmp_path / "steps.parquet")
    with pytest.raises(ValueError, match="columns"):
        Chain.read(tmp_path / "steps.parquet")
