"""The table of third-party models: the page shows what the script tries, and what is right is told from what is not."""

import json
import math
import re

import pytest
from flax import linen as nn
from third_party import MARK, TOLERANCE, cells, judge, page_lines, ran_on, read_results, write_page
from third_party_case import Built, cross_entropy, floats, labels
from third_party_models import MODELS, PACKAGES
from third_party_steps import N_STEPS, compare

from tests.benchmarks import BENCHMARKS

PAGE = BENCHMARKS.parent / "docs" / "models.md"


def test_the_page_has_a_row_for_each_model():
    _, _, written = PAGE.read_text().partition(MARK)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written.splitlines() if "| " in line]
    expected = [[name, PACKAGES[model.package].label, model.changed] for name, model in MODELS.items()]
    assert [row[:3] for row in rows[1:]] == expected  # after the headings
    assert {cell for row in rows[1:] for cell in row[3:] if not re.fullmatch(r"[\d.]+e[+-]\d+", cell)} <= {"fails"}
    for package in PACKAGES.values():
        assert (f"- {package.label}, because {package.why_no_deps}" in written) == bool(package.why_no_deps)


def test_packages_are_pinned():
    wanted = [name for package in PACKAGES.values() for name in (package.requirement, *package.beside) if name]
    assert [name for name in wanted if not re.fullmatch(r"[\w-]+==[\w.]+", name)] == []


def test_a_model_is_compared():
    def loss_fn(model, batch, train):
        return cross_entropy(model(nn.relu(batch["x"])), batch["label"])

    results = compare(Built(nn.Dense(10), loss_fn, {"x": floats(8), "label": labels()}))
    row = judge(results)
    assert row["failed"] == {}
    assert row["differences"].keys() == {"optax", "stage 0", "stage 1", "stage 2", "stage 3"}
    assert max(row["differences"].values()) <= TOLERANCE
    assert all(len(set(result["losses"])) == N_STEPS for result in results.values())


def test_a_model_that_depends_on_the_number_of_devices_is_found():
    loss_fn = lambda model, batch: model(batch).mean() * batch.sum()
    row = judge(compare(Built(nn.Dense(3), loss_fn, floats(8))))
    assert row["failed"].keys() == {"stage 0", "stage 1", "stage 2", "stage 3"}
    assert "on one device [" in row["failed"]["stage 0"]
    assert row["differences"]["optax"] <= TOLERANCE


@pytest.mark.parametrize("wrong", [1.1, math.nan, math.inf])
def test_what_is_off_fails(wrong):
    results = {"one device": {"losses": [1.0, 0.5]}, "stage 0": {"losses": [1.0, 0.5]}}
    row = judge(results | {"stage 1": {"losses": [wrong, 0.5]}, "stage 2": {"failed": "ValueError: no"}})
    assert row["failed"].keys() == {"stage 1", "stage 2"}
    assert cells(row) == ["0e+00", "fails", "fails", "fails"]


def test_without_one_device_all_fail():
    row = judge({"building it": {"failed": "ImportError: no"}})
    assert cells(row) == 4 * ["fails"]
    assert "- bert, building it: ImportError: no" in page_lines({"bert": row})


def test_a_loss_that_stays_fails():
    row = judge({"one device": {"losses": [1.0, 1.0]}, "stage 0": {"losses": [1.0, 1.0]}})
    assert "stays at 1.0" in row["failed"]["one device"]


def test_results_of_other_versions_are_not_shown(tmp_path):
    results = {"one device": {"losses": [1.0, 0.5]}, "stage 0": {"losses": [1.0, 0.5]}}
    for name, on in {"bert": ran_on("bert"), "gpt2": ran_on("gpt2") | {"jax": "0.4.0"}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"on": on, "by_way": results}))
    rows = read_results(tmp_path)
    assert rows == {"bert": judge(results)}
    page = tmp_path / "page.md"
    page.write_text(f"# Models\n\n{MARK}\nold\n")
    with pytest.raises(SystemExit, match=r"roberta.* were not tried"):
        write_page(page, rows)
    write_page(page, dict.fromkeys(MODELS, rows["bert"]))
    assert page.read_text().startswith(f"# Models\n\n{MARK}\n\nWith jax ")
    assert "old" not in page.read_text()
