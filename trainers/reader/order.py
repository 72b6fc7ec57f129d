"""The order of samples: (version, split, seed, epoch, step, logical worker) -> sample ids.

Guarantees, whatever the number of ranks, threads or prefetched batches:
- Each epoch holds every sample exactly once, apart from the tail that `Plan.tail` names.
- Every rank has the same number of steps, known before the first one.
- Any step can be computed alone: seeking costs what drawing one batch costs.

How: shards are permuted; consecutive shards of that permutation form windows of at most
`window_shards`; the samples of a window are permuted. The resulting sequence is cut into global
batches, a batch is dealt round-robin to the logical workers (position j to worker j mod K), and
within a microbatch samples stand in storage order, so that reading is an ascending walk.

Costs: O(shards) memory an epoch; about 0.1 us a sample when drawn in blocks of thousands.

A *sample id* is the row's number in the split's storage order: shards ascending by bucket, rows
ascending within each.
"""

import dataclasses
import itertools
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import HeadraceError
from trainers.reader.permutation import permute, round_keys, shuffled

Tail = Literal["drop", "wrap", "pad"]

PADDING = -1
"""The id of a place in the last batch that no sample fills (`tail="pad"`)."""

# Part of every key: a change of method must not pass for the same order.
_ORDER = "headrace order 1"
_LAST = np.iinfo(np.int64).max  # Sorts behind every id.


@dataclasses.dataclass(frozen=True)
class Plan:
    """What decides which samples form a batch; belongs to the params and the lineage of a run.

    Raises:
        HeadraceError: a value is out of range, or the batch cannot be dealt in equal parts.
    """

    seed: int
    batch_size: int
    """Samples of a global batch, over all ranks; a multiple of `num_logical_workers`."""
    num_logical_workers: int
    window_shards: int | None
    """Shards mixed with each other at a time, or None: storage order, no shuffling."""
    tail: Tail
    """What becomes of the samples beyond the last whole batch.

    `drop`: left out of this epoch. `wrap`: the batch is filled up from the epoch's beginning, whose
    samples come twice. `pad`: filled up with masked places, so that each sample comes once.
    """

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_logical_workers", "window_shards"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise HeadraceError(f"{name} is too small", expected="1 or more", found=str(count))
        if self.batch_size % self.num_logical_workers:
            raise HeadraceError(
                "The global batch cannot be dealt in equal parts to the logical workers",
                expected="batch_size a multiple of num_logical_workers",
                found=f"{self.batch_size} and {self.num_logical_workers}",
                fix="change one of them in params.yaml",
            )

    @property
    def microbatch_size(self) -> int:
        """Places of one logical worker in each batch."""
        return self.batch_size // self.num_logical_workers


def training(
    *,
    seed: int,
    batch_size: int,
    num_logical_workers: int,
    window_shards: int,
    tail: Literal["drop", "wrap"],
) -> Plan:
    """Shuffled, and every batch full: what an optimizer step expects."""
    return Plan(seed, batch_size, num_logical_workers, window_shards, tail)


def evaluation(*, batch_size: int, num_logical_workers: int) -> Plan:
    """In storage order, each sample exactly once, the last batch padded and masked."""
    return Plan(0, batch_size, num_logical_workers, None, "pad")


@dataclasses.dataclass(frozen=True)
class State:
    """A position in the order, the same on every rank: the batch to be read next."""

    version: str
    seed: int
    epoch: int
    step: int


def check_version(state: State, version: str) -> None:
    """Refuse to continue on other data than the state was taken from.

    Raises:
        HeadraceError: naming both versions.
    """
    if state.version != version:
        raise HeadraceError(
            "The checkpoint was made with another version of the dataset",
            expected=f"dataset version {state.version} (checkpoint)",
            found=f"dataset version {version} (decoded/index.arrow)",
            fix="git checkout the commit that made the checkpoint and run `dvc checkout`, "
            "or start a new run",
        )


def logical_workers_of(rank: int, world_size: int, num_logical_workers: int) -> range:
    """The logical workers that `rank` computes: round-robin, so counts differ by at most one.

    Raises:
        HeadraceError: there are more ranks than logical workers, so some would have nothing to do.
    """
    if world_size > num_logical_workers:
        raise HeadraceError(
            "There are more processes than logical workers",
            expected=f"at most {num_logical_workers}: num_logical_workers in params.yaml",
            found=f"{world_size} processes",
            fix="start fewer (HEADRACE_NUM_RANKS), or raise num_logical_workers (another run)",
        )
    return range(rank, num_logical_workers, world_size)


class Order:
    """The order of one split under one plan.

    Args:
        version, split, plan: what the order is a function of, and how to mix and cut.
        num_rows: [S] int64, the rows of each shard in storage order.
    """

    def __init__(self, version: str, split: str, num_rows: NDArray[np.int64], plan: Plan) -> None:
        self.version = version
        self.split = split
        self.plan = plan
        self.num_samples = int(num_rows.sum())
        whole, rest = divmod(self.num_samples, plan.batch_size)
        self.num_steps = whole + (rest > 0 and plan.tail != "drop")
        """Steps of each epoch, on every rank."""
        self.num_rows = num_rows

    def draw_epoch(self, epoch: int) -> "Epoch":
        """What an epoch needs to give any of its batches; O(shards) time and memory."""
        return Epoch(self, epoch, self._windows(epoch))

    def next_state(self, epoch: int, step: int) -> State:
        """The state after batch `step` of `epoch`; the end of an epoch is the start of the next."""
        ends = step + 1 >= self.num_steps
        return State(
            self.version, self.plan.seed, epoch + 1 if ends else epoch, 0 if ends else step + 1
        )

    def key(self, epoch: int, *parts: str | int) -> NDArray[np.uint64]:
        """The key of a permutation within this epoch."""
        return round_keys(_ORDER, self.version, self.split, self.plan.seed, epoch, *parts)

    def _windows(self, epoch: int) -> "Windows | None":
        if self.plan.window_shards is None:
            return None
        num_shards = len(self.num_rows)
        shards = shuffled(num_shards, self.key(epoch, "shards"))
        ends = np.cumsum(self.num_rows[shards])
        begins = ends - self.num_rows[shards]
        first_ids = (np.cumsum(self.num_rows) - self.num_rows)[shards]
        # Windows of nearly equal numbers of shards: a small rest would mix badly.
        num_windows = -(-num_shards // self.plan.window_shards)
        shard_edges = np.arange(num_windows + 1) * num_shards // num_windows
        edges = np.append(0, ends)[shard_edges]
        return Windows(ends, first_ids - begins, shard_edges, edges)


class Windows(NamedTuple):
    """An epoch's sequence of shards, and how windows divide it; places count its samples."""

    shard_ends: NDArray[np.int64]  # [S] the place where each permuted shard ends
    offsets: NDArray[np.int64]  # [S] id minus place, for the samples of each permuted shard
    shard_edges: NDArray[np.int64]  # [num_windows + 1] positions among the permuted shards
    edges: NDArray[np.int64]  # [num_windows + 1] places

    def locate(self, window: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of samples at `places` of the sequence of shards, all within `window`."""
        first, last = self.shard_edges[window : window + 2]
        shard = first + np.searchsorted(self.shard_ends[first:last], places, side="right")
        ids: NDArray[np.int64] = places + self.offsets[shard]
        return ids


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One epoch of an order, from which any batch can be drawn."""

    order: Order
    number: int
    windows: Windows | None

    def batches(self, step: int, num_steps: int) -> NDArray[np.int64]:
        """The sample ids of `num_steps` consecutive batches.

        Returns:
            [num_steps, num_logical_workers, microbatch_size] int64; ascending within a microbatch,
            then `PADDING`.
        """
        plan = self.order.plan
        places = np.arange(step * plan.batch_size, (step + num_steps) * plan.batch_size)
        if plan.tail == "pad":
            ids = np.full(len(places), _LAST)
            within = places[places < self.order.num_samples]
            ids[: len(within)] = self.ids_at(within)
        else:
            ids = self.ids_at(places % self.order.num_samples)
        dealt = ids.reshape(num_steps, plan.microbatch_size, plan.num_logical_workers)
        batches = np.sort(dealt.transpose(0, 2, 1), axis=-1)
        batches[batches == _LAST] = PADDING
        return batches

    def ids_at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids, [m] int64, at `places` of the epoch's sequence, [m] int64 below `num_samples`.

        Fast where neighbouring places lie in one window, as those of consecutive batches do.
        """
        if self.windows is None:
            return places
        window_of = np.searchsorted(self.windows.edges, places, side="right") - 1
        runs = np.flatnonzero(np.diff(window_of, prepend=-1))
        ids = np.empty_like(places)
        for begin, end in itertools.pairwise([*runs, len(places)]):
            ids[begin:end] = self._ids_within(int(window_of[begin]), places[begin:end])
        return ids

    def _ids_within(self, window: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        assert self.windows is not None
        begin, end = (int(edge) for edge in self.windows.edges[window : window + 2])
        key = self.order.key(self.number, "window", window)
        mixed = permute(places - begin, end - begin, key) + begin
        return self.windows.locate(window, mixed)
