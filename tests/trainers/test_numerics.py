from collections.abc import Iterator

import pytest
import torch

from trainers import numerics
from trainers.numerics import Precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _settings_of_this_process() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.set_deterministic_debug_mode("default")


def test_only_deterministic_kernels_are_allowed_and_threads_are_fixed() -> None:
    device = numerics.configure("fp32", 2)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 2
    assert not torch.backends.cudnn.benchmark
    assert torch.get_float32_matmul_precision() == "highest"
    assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_tf32_is_used_where_it_was_asked_for_only() -> None:
    numerics.configure("tf32", 1)
    assert torch.get_float32_matmul_precision() == "high"
    numerics.configure("fp32", 1)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("fp32", torch.float32),
        ("tf32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ],
)
def test_matrix_products_run_in_the_precision_asked_for(
    precision: Precision, dtype: torch.dtype
) -> None:
    with numerics.autocast(precision, CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
