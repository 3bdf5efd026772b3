"""Every notebook runs and says what the committed one says. Texts are compared, pictures are not."""

import copy
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def texts(notebook: Any) -> list[str]:
    """What each cell of code says."""
    text = lambda output: output.get("text") or output.get("data", {}).get("text/plain", "")
    return ["".join(map(text, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"]


@each_notebook
def test_says_what_the_committed_one_says(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # a slow machine makes simulated devices complain
    committed = nbformat.read(path, as_version=4)
    fresh = copy.deepcopy(committed)
    NotebookClient(fresh, timeout=600, resources={"metadata": {"path": FOLDER}}).execute()
    assert texts(fresh) == texts(committed), "run `make notebooks`, look at what changed, and commit it"


@each_notebook
def test_can_be_read_without_running(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "there is no picture"
    assert not [output for output in outputs if output.get("name") == "stderr" or output.output_type == "error"]
    assert not re.search(r"/(home|root|tmp|usr)/|0x[0-9a-f]{8}", "".join(texts(notebook)))
    assert path.stat().st_size < 300_000


@each_notebook
def test_links_lead_somewhere(path):
    prose = "".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", prose)
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []
