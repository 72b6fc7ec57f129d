"""Loss and accuracy over a split: each sample once, the same bits on any number of ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from trainers import numerics
from trainers.normalise import Normalisation
from trainers.numerics import Precision
from trainers.reader.loader import Reader
from trainers.reduce import ExactSum


def validate(
    model: nn.Module, reader: Reader, normalisation: Normalisation, precision: Precision
) -> dict[str, float]:
    """Mean loss and accuracy of `model` over the split of `reader`; collective.

    Args:
        model: on the reader's device; is left in the mode that it was in.
        reader: with a plan of `order.evaluation`.
        normalisation: that the model was trained with.
        precision: of the forward pass.
    """
    was_training = model.training
    model.eval()
    plan = reader.order.plan
    sums = ExactSum(reader.num_steps_per_epoch * plan.num_logical_workers)
    with torch.no_grad():
        for batch in reader.batches(reader.start()):
            for part in batch.microbatches:
                with numerics.autocast(precision, part.images.device):
                    logits = model(normalisation.apply(part.images)).float()
                # Padded places carry a label that the loss ignores and no argmax equals.
                loss = functional.cross_entropy(logits, part.labels, reduction="sum")
                hits = (logits.argmax(dim=1) == part.labels).sum()
                sums.add([loss.double(), hits])
    model.train(was_training)
    loss_sum, num_correct = sums.start().wait()
    num = reader.num_samples
    return {"loss": float(loss_sum) / num, "accuracy": int(num_correct) / num}
