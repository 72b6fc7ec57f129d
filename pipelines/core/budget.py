"""The budget of rejected samples: a stage that drops too many fails."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from pipelines.core.errors import HeadraceError

_NUM_EXAMPLES = 3


def hold(stage: str, rejected: pa.Table, num_in: int, max_fraction: float) -> dict[str, int]:
    """Check a stage's rejected samples against its budget.

    Args:
        stage: its name, also the section of its `max_rejected_fraction`.
        rejected: REJECTED rows.
        num_in: number of samples that came in.
        max_fraction: share of them, 0..1, that may be rejected.

    Returns:
        The number of rejected samples by reason.

    Raises:
        HeadraceError: more were rejected; names the top reasons and an example of each.
    """
    reasons = Counter(map(str, rejected["reason"].to_pylist()))
    if rejected.num_rows > max_fraction * num_in:
        examples = "".join(
            f"\n            {row['reason']}: {row['path']} ({row['detail']})"
            for row in rejected.slice(0, _NUM_EXAMPLES).to_pylist()
        )
        share = rejected.num_rows / num_in
        top = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(_NUM_EXAMPLES))
        raise HeadraceError(
            f"Stage {stage} rejected too many samples; nothing was written.",
            where=f"params.yaml:{stage}.max_rejected_fraction",
            expected=f"at most {max_fraction:.2%} of {num_in:,} samples",
            found=f"{rejected.num_rows:,} ({share:.2%}): {top}; such as{examples}",
            fix="mend or remove such files, or allow more if they may go",
        )
    return dict(sorted(reasons.items()))
