import pickle
import re

import pytest

from pipelines.core.reasons import Reason


def test_reason_is_the_word_that_stands_in_tables() -> None:
    assert f"{Reason.EXACT_DUPLICATE}" == "exact_duplicate"
    assert Reason("too_small") is Reason.TOO_SMALL


def test_reason_survives_the_way_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(Reason.BLANK)) is Reason.BLANK


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_snake_case_and_explained_in_a_sentence(reason: Reason) -> None:
    assert re.fullmatch("[a-z]+(_[a-z]+)*", reason.value)
    assert re.fullmatch(r"[A-Z].*\.", reason.meaning)
