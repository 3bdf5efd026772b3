"""Importing jzero, or asking for help, loads nothing heavy; names load when they are used and then stay."""

import subprocess
import sys

import pytest

import jzero
from jzero.base.lazy import lazy_names

HEAVY = "{'jax', 'flax', 'optax', 'orbax', 'tensorstore', 'pydantic', 'yaml', 'hjson', 'numpy'}"


def loaded(code: str, heavy: str = HEAVY) -> str:
    """Which heavy modules a program has loaded at its end."""
    code = f"import sys\n{code}\nprint(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "import jzero",
        "import jzero.plan, jzero.plan.render, jzero.checkpoint, jzero.models, jzero.doctor, jzero.train.monitor",
        "from jzero.cli.program import app; app(['--help'], standalone_mode=False)",
    ],
)
def test_nothing_heavy_is_loaded(code):
    assert loaded(code) == "[]"


def test_one_name_loads_only_what_it_needs():
    assert loaded("import jzero; jzero.Config", "{'flax', 'optax', 'orbax', 'tensorstore', 'rich'}") == "[]"
    build = "from jzero import models; models.build({'size': 'gpt2'})"
    assert loaded(build, "{'flax', 'optax', 'orbax', 'tensorstore'}") == "[]"
    assert loaded("import jzero.cli.inspect", "{'flax', 'optax', 'orbax', 'tensorstore'}") == "[]"


def test_a_name_stays_what_it_was():
    assert jzero.Config is jzero.Config
    assert vars(jzero)["Config"] is jzero.Config
    assert jzero.plan is sys.modules["jzero.plan"]


def test_an_unknown_name_is_an_attribute_error():
    get, _ = lazy_names("jzero", {"jzero.base.units": ["format_bytes"]})
    with pytest.raises(AttributeError, match="module 'jzero' has no attribute 'format_byte'"):
        get("format_byte")
