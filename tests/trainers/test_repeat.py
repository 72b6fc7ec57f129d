import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import HeadraceError
from tests.trainers.runs import NUM_STEPS, alone, contents, rewritten, set_params, train_here
from trainers.chain import Chain
from trainers.record import STEPS, WEIGHTS, open_run
from trainers.repeat import Difference, Repetition
from trainers.step import Trainer


def repeat(finished: Path, data: Path, steps: range) -> tuple[Difference | None, int]:
    """What differs, and the first step that was made."""
    with alone(), Repetition(open_run(finished), data, steps) as repetition:
        return repetition.difference(), repetition.first_step


def changed_chain(finished: Path, step: int, **values: Any) -> None:
    """Have the run's record say something else of `step`."""
    kept, chain = Chain.read(finished / STEPS), Chain()
    for number in range(kept.num_steps):
        link = kept.link(number)
        told = {"ids": link.ids, "loss": link.loss, "weights": link.weights}
        chain.add(*(told | (values if number == step else {})).values())
    chain.write(finished / STEPS)


def test_steps_that_are_made_again_are_equal(finished: Path, data: Path) -> None:
    assert repeat(finished, data, range(NUM_STEPS)) == (None, 0)
    assert repeat(finished, data, range(3, 5)) == (None, 0)


def test_the_files_of_a_run_are_left_as_they_are(
    finished: Path, data: Path, undisturbed: dict[str, bytes]
) -> None:
    repeat(finished, data, range(NUM_STEPS))
    assert contents(finished) == undisturbed


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"ids": 7}, "the sample ids"),
        ({"loss": 0.25}, "the loss"),
        ({"weights": "ab" * 32}, "the weights"),
    ],
)
def test_the_first_step_that_differs_is_told(
    finished: Path, data: Path, values: dict[str, Any], what: str
) -> None:
    changed_chain(finished, 5, **values)
    difference, _ = repeat(finished, data, range(2, NUM_STEPS))
    assert difference is not None
    assert (difference.step, difference.what) == (5, what)
    assert difference.before != difference.now
    assert repeat(finished, data, range(2, 5))[0] is None


def test_a_step_before_those_that_were_asked_for_is_compared_too(
    finished: Path, data: Path
) -> None:
    changed_chain(finished, 1, loss=0.25)
    difference, _ = repeat(finished, data, range(4, 5))
    assert difference is not None
    assert difference.step == 1


def test_it_begins_at_the_nearest_checkpoint_that_was_kept(
    finished: Path, project: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.step

    def stopped(self: Trainer, position: Any, *args: Any, **kwargs: Any) -> Any:
        if position.step == 3:
            signal.raise_signal(signal.SIGTERM)
        return step(self, position, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stopped)
        with pytest.raises(SystemExit):
            train_here(project, "stopped")
    assert repeat(finished, data, range(6, 8)) == (None, 5)
    assert repeat(finished, data, range(4, 8)) == (None, 4)
    shutil.rmtree(project / ".state")
    assert repeat(finished, data, range(6, 8)) == (None, 0)


def test_other_params_in_every_file_of_the_run_show_in_the_weights(
    finished: Path, data: Path
) -> None:
    rewritten(finished / WEIGHTS, b'"lr\\": 0.05', b'"lr\\": 0.06')
    difference, _ = repeat(finished, data, range(NUM_STEPS))
    assert difference is not None
    assert (difference.step, difference.what) == (0, "the weights")


def test_params_that_make_other_steps_are_refused(finished: Path, data: Path) -> None:
    rewritten(finished / WEIGHTS, b'"epochs\\": 2', b'"epochs\\": 3')
    with pytest.raises(HeadraceError, match="do not make the steps") as caught:
        repeat(finished, data, range(NUM_STEPS))
    assert caught.value.expected == "8 steps"
    assert str(caught.value.found).startswith("12 steps")


def test_what_is_otherwise_here_is_told(
    finished: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone(), Repetition(open_run(finished), data, range(1)) as repetition:
        assert repetition.changes() == []
        monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
        assert repetition.changes() == ["variables.MKL_CBWR: none -> COMPATIBLE"]
        monkeypatch.setattr("trainers.train.code_of", lambda _: {})
        assert any(
            line.startswith("code.trainers/train.py: ") and line.endswith(" -> none")
            for line in repetition.changes()
        )


def test_a_run_that_kept_checkpoints_is_verified_from_the_nearest(
    project: Path, data: Path
) -> None:
    set_params(project, keep_every_steps=3, checkpoint_interval_s=1e6)
    out = train_here(project)
    assert repeat(out, data, range(7, 8)) == (None, 6)
    assert repeat(out, data, range(3, 4)) == (None, 3)
    assert repeat(out, data, range(2, 4)) == (None, 0)
