import pickle

from pipelines.core.errors import HeadraceError, did_you_mean


def test_an_error_says_what_where_expected_found_and_fix() -> None:
    error = HeadraceError("No.", where="a.yaml:b", expected="1", found="2", fix="set b to 1")
    assert str(error).splitlines() == [
        "No.",
        "  where:    a.yaml:b",
        "  expected: 1",
        "  found:    2",
        "  fix:      set b to 1",
    ]


def test_an_error_leaves_out_what_is_not_known() -> None:
    assert str(HeadraceError("No.", found="2")) == "No.\n  found:    2"


def test_an_error_survives_the_way_from_another_process() -> None:
    error = HeadraceError("No.", where="here", fix="mend it")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.fix == "mend it"


def test_a_near_miss_is_suggested_and_a_far_one_is_not() -> None:
    assert did_you_mean("epoch", ["epochs", "lr"]) == " Did you mean 'epochs'?"
    assert did_you_mean("zebra", ["epochs", "lr"]) == ""
