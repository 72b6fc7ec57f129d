from pathlib import Path

import pytest
import torch
from torch import nn

from tests.decoded import write_decoded
from tests.trainers.runs import alone
from trainers.normalise import Normalisation
from trainers.reader.loader import Placement, Reader
from trainers.reader.order import evaluation
from trainers.validate import validate

NORMALISATION = Normalisation((0.5,), (0.25,))


def test_every_sample_counts_once_whatever_the_batch(tmp_path: Path) -> None:
    write_decoded(tmp_path, splits={"val": [10, 0, 3]}, shape=(6, 6, 1), num_classes=4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Dropout(0.5))
    scores = []
    placement = Placement(0, 1, 1, 2, torch.device("cpu"))
    with alone():
        for batch_size in (4, 6, 32):
            plan = evaluation(batch_size=batch_size, num_logical_workers=2)
            with Reader(tmp_path, "val", plan, placement) as reader:
                scores.append(validate(model, reader, NORMALISATION, "fp32"))
        plan = evaluation(batch_size=1, num_logical_workers=1)
        with Reader(tmp_path, "val", plan, placement) as reader:
            images, labels = _all(reader)
    assert model.training
    logits = model.eval()(NORMALISATION.apply(images))
    assert len(labels) == 13
    for score in scores:
        assert score["accuracy"] == pytest.approx(
            (logits.argmax(dim=1) == labels).double().mean().item()
        )
        loss = nn.functional.cross_entropy(logits, labels).item()
        assert score["loss"] == pytest.approx(loss, rel=1e-5)


def _all(reader: Reader) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [
        (part.images[part.mask].clone(), part.labels[part.mask].clone())
        for batch in reader.batches(reader.start())
        for part in batch.microbatches
    ]
    images, labels = zip(*parts, strict=True)
    return torch.cat(images), torch.cat(labels)
