import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from pipelines.core.errors import HeadraceError
from trainers import models

SHAPE = (8, 8, 1)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path, for a module `own_net` of the user's."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "own_net.py"
    sys.modules.pop("own_net", None)


def test_a_name_is_built() -> None:
    assert models.build("small", SHAPE, 3)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


def test_a_model_of_the_users_own_is_built(own: Path) -> None:
    own.write_text(
        "from torch import nn\n"
        "def net(shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], num_classes))\n"
    )
    model = models.build("own_net:net", SHAPE, 3)
    assert isinstance(model, nn.Sequential)
    assert models.modules("own_net:net") == ("own_net",)
    assert models.modules("small") == ()


def test_building_leaves_training_mode_buffers_and_generator_as_they_are(own: Path) -> None:
    torch.manual_seed(1)
    model = models.build("small", SHAPE, 3)
    after = torch.rand(1)
    assert model.training
    assert all(
        float(buffer.sum()) in (0.0, len(buffer)) for buffer in model.buffers() if buffer.ndim
    )
    torch.manual_seed(1)
    models.BUILDERS["small"](SHAPE, 3)
    assert torch.equal(after, torch.rand(1))


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(HeadraceError, match="Did you mean 'resnet18'"):
        models.build("resnet_18", SHAPE, 3)


@pytest.mark.parametrize(
    ("source", "name", "found"),
    [
        ("", "own_nett:net", "No module named 'own_nett'"),
        ("import nonsense_module", "own_net:net", "No module named 'nonsense_module'"),
        ("def net(shape", "own_net:net", "raised SyntaxError"),
        ("network = print", "own_net:netwrk", "Did you mean 'network'"),
        ("def net(): pass", "own_net:net", "raised TypeError"),
        ("def net(s, n): return 3", "own_net:net", "returned a int, not a torch.nn.Module"),
        (
            "from torch import nn\ndef net(s, n): return nn.Flatten()",
            "own_net:net",
            r"a batch of 2 images gave \[2, 64\]",
        ),
        (
            "from torch import nn\ndef net(s, n): return nn.Linear(3, n)",
            "own_net:net",
            "its forward pass raised RuntimeError",
        ),
    ],
)
def test_an_unusable_model_is_told_in_one_error(
    own: Path, source: str, name: str, found: str
) -> None:
    own.write_text(source)
    with pytest.raises(HeadraceError, match=found) as caught:
        models.build(name, SHAPE, 3)
    assert caught.value.where == "params.yaml: train.model"
