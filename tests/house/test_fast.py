"""`make test-fast` looks into every folder of tests, and every path that is named anywhere exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAST = (ROOT / "tests/fast.txt").read_text().splitlines()


def test_every_folder_has_a_quick_test():
    folders = {file.relative_to(ROOT).parts[1] for file in ROOT.glob("tests/*/**/test_*.py")}
    assert folders == {Path(line.partition("::")[0]).parts[1] for line in FAST}


@pytest.mark.parametrize("file", ["Makefile", ".ci/run", "pyproject.toml", "tests/fast.txt", "tests/conftest.py"])
def test_every_path_that_is_named_exists(file):
    found = re.findall(r"(?<![\w/])(?:tests|benchmarks|configs|docs)/[\w./]*\w", (ROOT / file).read_text())
    assert [path for path in found if not (ROOT / path).exists()] == []
