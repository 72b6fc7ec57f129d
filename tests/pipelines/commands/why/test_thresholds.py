import pytest

from pipelines.commands.why.thresholds import measures, passed, rejection
from pipelines.core.reasons import Reason
from pipelines.core.route import Settings

ROW = {"width": 40, "height": 10, "num_bytes": 3 << 20, "contrast": 12.5, "label": "Bag"}
PARAMS = {
    "min_side_px": 8,
    "max_aspect_ratio": 5,
    "max_file_mib": 4,
    "min_contrast": 1,
    "val_fraction": 0.1,
    "max_rejected_fraction": 0.2,
}


def rejected(reason: str, detail: str = "x") -> dict[str, str]:
    return {"key": "a", "path": "a.png", "reason": reason, "detail": detail, "stage": "clean"}


def test_sizes_and_shape_follow_from_the_row() -> None:
    found = measures(ROW)
    assert (found["side_px"], found["aspect_ratio"]) == (10, 4)
    assert (found["file_mib"], found["megapixels"]) == (3, 0.0004)


def test_every_bound_is_told_beside_its_measure_and_nothing_else_is() -> None:
    texts = [fact.text for fact in passed(ROW, Settings(PARAMS, None))]
    assert texts == [
        "side_px 10, at least 8",
        "aspect_ratio 4, at most 5",
        "file_mib 3, at most 4",
        "contrast 12.5, at least 1",
    ]


def test_machines_get_all_bounds_in_one_list() -> None:
    first = passed(ROW, Settings(PARAMS, None))[0].values["thresholds"]
    assert isinstance(first, list)
    assert {"measure": "contrast", "value": 12.5, "param": "min_contrast", "limit": 1} in first
    assert len(first) == 4


def test_a_stage_without_thresholds_tells_none() -> None:
    assert passed(ROW, Settings({"max_rejected_fraction": 0}, None)) == []


def test_a_param_that_has_changed_since_is_told_with_both_values() -> None:
    facts = passed(ROW, Settings({"min_contrast": 20}, {"min_contrast": 1}))
    assert facts[0].text == "contrast 12.5, at least 1 (params.yaml now says 20: dvc repro)"


def test_a_rejection_names_its_meaning_and_the_threshold_that_made_it() -> None:
    facts = rejection(rejected("blank", "contrast 0"), Settings(PARAMS, None))
    told = {fact.name: fact.text for fact in facts}
    assert told["reason"] == f"blank: {Reason.BLANK.meaning}"
    assert told["detail"] == "contrast 0"
    assert told["threshold"] == "min_contrast 1"
    assert facts[0].values["params"] == {"min_contrast": 1}


def test_a_reason_of_ones_own_is_told_with_every_threshold_of_its_stage() -> None:
    settings = Settings({"min_sharpness": 10, "max_rejected_fraction": 1}, None)
    told = {fact.name: fact.text for fact in rejection(rejected("blurred"), settings)}
    assert (told["reason"], told["thresholds"]) == ("blurred", "min_sharpness 10")


@pytest.mark.parametrize("reason", list(Reason))
def test_what_a_meaning_names_in_backticks_is_a_param_of_clean(reason: Reason) -> None:
    pipelines_clean = pytest.importorskip("pipelines.clean")
    fields = pipelines_clean.Params.__dataclass_fields__
    named = rejection(rejected(reason), Settings(dict.fromkeys(fields, 1), None))[0].values
    assert isinstance(named["params"], dict)
    assert reason.meaning.count("`") == 2 * len(named["params"])
