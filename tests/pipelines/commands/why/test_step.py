from pipelines.commands.why.step import Fact, Step, not_built

STEP = Step(
    "clean",
    "passed",
    (Fact("label", "Bag (class 8)", {"label": "Bag"}), Fact("content", "sha256 00", {"sha256": 0})),
)


def test_a_step_is_an_object_of_all_its_facts() -> None:
    assert STEP.json == {"stage": "clean", "outcome": "passed", "label": "Bag", "sha256": 0}


def test_facts_stand_under_each_other() -> None:
    assert STEP.lines(6, 8) == [
        "clean   passed",
        "  label     Bag (class 8)",
        "  content   sha256 00",
    ]


def test_a_stage_that_has_not_run_says_what_is_missing_and_what_to_do() -> None:
    step = not_built("shard", "shards/index.arrow")
    assert step.outcome == "not built"
    assert "shards/index.arrow is not there: dvc repro" in step.facts[0].text
