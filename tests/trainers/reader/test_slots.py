import pytest
import torch

from trainers.reader.slots import Slot

CPU = torch.device("cpu")


def test_microbatches_are_views_of_the_memory_that_is_filled() -> None:
    slot = Slot(range(1, 6, 2), 4, (2, 3, 1), CPU)
    slot.images[:] = torch.arange(12 * 6, dtype=torch.uint8).reshape(12, 6).numpy()
    slot.labels[:] = range(12)
    slot.ids[:] = range(100, 112)
    slot.mask[:] = [True] * 11 + [False]
    assert [microbatch.logical_worker for microbatch in slot.microbatches] == [1, 3, 5]
    last = slot.microbatches[2]
    assert last.images.shape == (4, 2, 3, 1)
    assert last.images.dtype == torch.uint8
    assert last.images.flatten().tolist() == list(range(8 * 6, 12 * 6))
    assert last.labels.tolist() == [8, 9, 10, 11]
    assert last.ids.tolist() == [108, 109, 110, 111]
    assert last.mask.tolist() == [True, True, True, False]


def test_refilling_allocates_nothing() -> None:
    slot = Slot(range(2), 4, (2, 3, 1), CPU)
    before = [microbatch.images.data_ptr() for microbatch in slot.microbatches]
    for _ in range(3):
        slot.before_fill()
        slot.images[:] = 1
        slot.after_fill()
        slot.hand_out()
        slot.take_back()
    assert [microbatch.images.data_ptr() for microbatch in slot.microbatches] == before


@pytest.mark.gpu
def test_on_a_gpu_each_batch_arrives_though_the_slot_is_refilled_at_once() -> None:
    slot = Slot(range(2), 64, (224, 224, 3), torch.device("cuda:0"))
    sums = []
    for value in range(20):
        slot.before_fill()
        slot.images[:] = value
        slot.labels[:] = value
        slot.after_fill()
        slot.hand_out()
        images, labels = slot.microbatches[1].images, slot.microbatches[1].labels
        assert images.is_cuda
        sums.append((images.float().mean(), labels.float().mean()))
        slot.take_back()
    assert [(float(a), float(b)) for a, b in sums] == [(n, n) for n in range(20)]
