import gzip
import json
from pathlib import Path

from tests.trainers.runs import contents, set_params, train_here
from trainers.profiling import OPERATORS, TRACE, profiled


def test_a_run_leaves_a_trace_and_a_table_and_its_bytes_are_the_same(
    project: Path, undisturbed: dict[str, bytes]
) -> None:
    set_params(project, profile=True)
    assert contents(train_here(project)) == undisturbed
    folder = project / "runs" / "profile"
    assert "aten::convolution_backward" in (folder / OPERATORS).read_text()
    events = json.loads(gzip.decompress((folder / TRACE).read_bytes()))["traceEvents"]
    steps = {event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep")}
    assert len(steps) == 3


def test_off_it_writes_nothing(tmp_path: Path) -> None:
    with profiled(tmp_path / "profile", is_on=False) as after_step:
        after_step()
    assert list(tmp_path.iterdir()) == []
