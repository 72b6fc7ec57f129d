"""What docs/cluster.md tells of the machine's settings is so."""

import re
from pathlib import Path

from ruamel.yaml import YAML

from pipelines.core import cluster
from pipelines.core.typed import field_names

PAGE = Path("docs/cluster.md").read_text()


def test_the_file_that_is_shown_is_read(tmp_path: Path) -> None:
    shown = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
    assert set(YAML(typ="safe").load(shown)) <= set(field_names(cluster.Machine))
    (tmp_path / "cluster.yaml").write_text(shown)
    assert cluster.machine(tmp_path / "cluster.yaml").num_ranks == 2


def test_variables_stand_beside_their_keys() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(HEADRACE_\w+)=", PAGE, re.MULTILINE)
    assert rows
    assert {(variable, key) for key, variable in rows} <= set(cluster._ENVIRONMENT.items())
