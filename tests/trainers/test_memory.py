import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipelines.core.errors import HeadraceError
from tests.trainers.runs import contents, set_params, train_here
from trainers import memory, models
from trainers.memory import is_out_of_memory
from trainers.models.small import small


class Hungry(nn.Module):
    """The small net, for which batches of more than `limit` images do not fit."""

    limit = 2

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.net = small(shape, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(images) > self.limit:
            raise torch.OutOfMemoryError(f"no room for {len(images)} images\nand a stack")
        return self.net(images)  # type: ignore[no-any-return]


@pytest.fixture
def hungry(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(models.BUILDERS, "hungry", Hungry)
    set_params(project, model="hungry")
    return project


def test_auto_halves_the_microbatch_until_it_fits(
    hungry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_params(hungry, model="hungry", num_accumulation_steps="auto")
    found = contents(train_here(hungry, "auto"))
    assert json.loads(found["lineage.json"])["params"]["num_accumulation_steps"] == 2
    set_params(hungry, model="hungry", num_accumulation_steps=2)
    assert contents(train_here(hungry, "two")) == found


def test_auto_changes_nothing_where_all_fits(project: Path, undisturbed: dict[str, bytes]) -> None:
    set_params(project, num_accumulation_steps="auto")
    assert contents(train_here(project)) == undisturbed


def test_a_model_that_fits_in_no_way_is_refused(
    hungry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_pass", lambda *_: exec("raise torch.OutOfMemoryError('full')"))
    set_params(hungry, model="hungry", num_accumulation_steps="auto")
    with pytest.raises(HeadraceError, match="does not fit into memory"):
        train_here(hungry)


def test_a_step_without_room_tells_what_was_held_and_what_to_change(hungry: Path) -> None:
    with pytest.raises(HeadraceError, match="memory does not suffice") as caught:
        train_here(hungry)
    assert caught.value.where == "a microbatch of 4 samples on cpu"
    for name in ("weights 0.1 MiB", "their average 0.1 MiB", "of 4 logical workers 0.4 MiB"):
        assert name in str(caught.value.found)
    assert "no room for 4 images" in str(caught.value.found)
    assert "and a stack" not in str(caught.value.found)
    assert "num_accumulation_steps: auto" in str(caught.value.fix)


def test_other_errors_of_a_model_stay_what_they_are(
    hungry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hungry, "forward", lambda *_: torch.zeros(2, 3) @ torch.zeros(2, 3))
    with pytest.raises(HeadraceError, match="cannot be used"):
        train_here(hungry)


def test_both_of_torch_s_ways_to_say_it_are_known() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes"))
    assert not is_out_of_memory(KeyError("can't allocate memory"))
