import json
import shutil
from pathlib import Path

import pytest

from pipelines.core.errors import HeadraceError
from tests.trainers.runs import NUM_STEPS, PARAMS
from trainers.record import LINEAGE, STEPS, WEIGHTS, data_at_hand, find_data, open_run


def test_a_run_is_known_by_its_folder_or_its_weights_file(finished: Path) -> None:
    assert open_run(finished) == open_run(finished / WEIGHTS)
    assert open_run(finished).folder == finished


def test_a_weights_file_alone_gives_the_params_of_its_run(finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / WEIGHTS, tmp_path / "elsewhere.safetensors")
    config = open_run(tmp_path / "elsewhere.safetensors").config
    assert (config.lr, config.seed) == (PARAMS["lr"], PARAMS["seed"])
    assert config.semantic().items() >= {"model": "small", "epochs": 2, "batch_size": 16}.items()


def test_the_record_beside_the_weights_is_read(finished: Path) -> None:
    run = open_run(finished)
    assert run.read_steps().num_steps == NUM_STEPS
    assert run.read_lineage() == json.loads((finished / LINEAGE).read_text())


@pytest.mark.parametrize("harmed", [b"", b"[1]", b"\xff\xfe garbage", None])
def test_a_part_that_cannot_be_read_is_told_with_its_mend(
    finished: Path, harmed: bytes | None
) -> None:
    run = open_run(finished)
    for name, read in ((STEPS, run.read_steps), (LINEAGE, run.read_lineage)):
        path = finished / name
        path.unlink() if harmed is None else path.write_bytes(harmed)
        with pytest.raises(HeadraceError, match=rf"(?s)cannot be read.*{name}.*dvc checkout"):
            read()


def test_data_are_found_by_their_content(project: Path, finished: Path) -> None:
    run = open_run(finished)
    with pytest.raises(HeadraceError, match="not at hand") as caught:
        find_data(run, None)
    assert caught.value.found == "no decoded dataset"
    (project / "datasets" / "any name").mkdir(parents=True)
    (project / "datasets" / "any name" / "decoded").symlink_to(project / "decoded")
    assert find_data(run, None).version == run.about.dataset_version
    assert data_at_hand(None) == {run.about.dataset_version: Path("datasets/any name/decoded")}


def test_data_of_another_version_are_told_with_both(project: Path, finished: Path) -> None:
    (project / "other").mkdir()
    (project / "other" / "index.arrow").write_bytes(b"other")
    with pytest.raises(HeadraceError, match="not at hand") as caught:
        find_data(open_run(finished), project / "other")
    assert open_run(finished).about.dataset_version in str(caught.value.expected)
    assert f"in {project / 'other'}" in str(caught.value.found)
