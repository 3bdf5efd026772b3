"""Trains small forms of other people's models at stages 0-3, and compares their losses with those of one device.

It makes a virtual environment, which sees the packages of the Python that runs it (jax, flax and optax are the same)
and gets the models' own beside them; no weights are downloaded. Each model is a process of its own, on 8 simulated
devices. Dropout is off: its masks depend on the number of devices, as they should.

    python benchmarks/third_party.py --folder /tmp/models --models bert,flax-wmt
"""

import argparse
import json
import os
import site
import subprocess
import tarfile
import tempfile
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from third_party_models import MODELS, PACKAGES

STAGES = [f"stage {stage}" for stage in range(4)]
TOLERANCE = 1e-5
HERE = Path(__file__).parent
MARK = "<!-- what follows is written by benchmarks/third_party.py --page -->"
QUICKER_COMPILES = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def main() -> None:
    """Makes the environment, tries the models and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="of environment and results, which are kept; by default a temporary one"
    )
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--page", type=Path, help="write the table of all models tried in the folder into this page")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    args = parser.parse_args()
    names = args.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"there is no model {', '.join(unknown)}; there are {', '.join(MODELS)}.")
    if args.page and MARK not in args.page.read_text():
        parser.error(f"{args.page} lacks the line {MARK}")
    console = Console(stderr=args.json)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        console.print(f"Installing {len(PACKAGES)} packages into {folder}", markup=False)
        python = make_environment(folder)
        results = folder / "results"
        results.mkdir(exist_ok=True)
        for name in track(names, "Training", console=console):
            found = {"on": ran_on(name), "by_way": try_model(python, name)}
            said = json.dumps(found).replace(f"{folder}/", "")  # sentences name files of the environment
            (results / f"{name}.json").write_text(said)
        rows = read_results(results)
    if args.page:
        write_page(args.page, rows)
    rows = {name: rows[name] for name in names}
    if args.json:
        print(json.dumps({"versions": versions(), "models": rows}, indent=2))
        return
    console.print(table(rows))
    for line in failures(rows):
        console.print(line, markup=False)


def versions() -> dict[str, str]:
    """What the models run on."""
    return {name: version(name) for name in ("jax", "flax", "optax")}


def ran_on(name: str) -> dict[str, str]:
    """The same, and the model's own package."""
    return versions() | {"package": PACKAGES[MODELS[name].package].label}


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """What became of each model that was tried with these versions."""
    files = {name: folder / f"{name}.json" for name in MODELS}
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    return {name: judge(one["by_way"]) for name, one in found.items() if one["on"] == ran_on(name)}


def make_environment(folder: Path) -> Path:
    """Makes the virtual environment, unless the folder holds it already, and returns its Python."""
    python = folder / "bin" / "python"
    wanted = json.dumps([versions(), *map(str, PACKAGES.values())])
    installed = folder / "installed.json"
    if installed.exists() and installed.read_text() == wanted:
        return python
    venv.create(folder, with_pip=True)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "running.pth").write_text("\n".join([*site.getsitepackages(), str(HERE.parent)]) + "\n")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
    complete = [package.requirement for package in PACKAGES.values() if package.requirement and not package.why_no_deps]
    alone = [package.requirement for package in PACKAGES.values() if package.why_no_deps]
    beside = [requirement for package in PACKAGES.values() for requirement in package.beside]
    _call([*pip, "install", *complete, *beside])
    _call([*pip, "install", "--no-deps", *alone])
    _unpack_examples(pip, folder)
    installed.write_text(wanted)
    return python


def _unpack_examples(pip: list[str], folder: Path) -> None:
    """Flax's source distribution, which alone has its examples, of the version that runs."""
    flax = f"flax=={version('flax')}"
    with tempfile.TemporaryDirectory() as download:
        _call([*pip, "download", "--no-deps", "--no-binary", "flax", "--dest", download, flax])
        (archive,) = Path(download).iterdir()
        with tarfile.open(archive) as file:
            examples = [member for member in file if "/examples/" in member.name]
            file.extractall(folder, examples, filter="data")


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise SystemExit(f"{' '.join(command)} failed: {errors[-1] if errors else 'without a word'}")


def try_model(python: Path, name: str) -> dict[str, dict[str, Any]]:
    """Trains one model in a process of the environment; see `third_party_steps.compare`."""
    command = [str(python), "-W", "ignore", str(HERE / "third_party_steps.py"), name]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICKER_COMPILES}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    except subprocess.TimeoutExpired:
        return {"running it": {"failed": "it was ended after 15 minutes."}}
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["without a word"]
        return {"running it": {"failed": f"the process ended with status {done.returncode}: {said[-1]}"}}
    return json.loads(done.stdout.splitlines()[-1])


def judge(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The largest difference of any loss from that of one device, by way; and what failed, in a sentence.

    It is relative where the loss is above 1.
    """
    failed = {where: result["failed"] for where, result in results.items() if "failed" in result}
    losses = {where: result["losses"] for where, result in results.items() if "losses" in result}
    expected = losses.pop("one device", None)
    if expected is None:
        return {"differences": {}, "failed": failed}
    differences = {
        where: max(abs(a - b) / max(1, abs(b)) for a, b in zip(found, expected, strict=True))
        for where, found in losses.items()
    }
    for where, difference in differences.items():
        if not difference <= TOLERANCE:  # nan is not
            failed[where] = f"the losses are {losses[where]}, on one device {expected}."
    if expected[0] == expected[-1]:
        failed["one device"] = f"the loss stays at {expected[0]}."
    return {"differences": differences, "failed": failed}


def cells(row: dict[str, dict[str, Any]]) -> list[str]:
    """What a table says of each stage: how far its losses are off, or that it fails."""
    differences = {stage: row["differences"].get(stage) for stage in STAGES if stage not in row["failed"]}
    return ["fails" if differences.get(stage) is None else f"{differences[stage]:.0e}" for stage in STAGES]


def table(rows: dict[str, Any]) -> Table:
    """One line a model."""
    right = sum(not row["failed"] for row in rows.values())
    title = f"Losses of 3 steps on 8 devices against one: largest differences ({right} of {len(rows)} right)"
    out = Table("model", "package", *STAGES, "optax", title=title)
    for name, row in rows.items():
        alone = row["differences"].get("optax")
        style = "red" if row["failed"] else None
        package = escape(PACKAGES[MODELS[name].package].label)
        out.add_row(name, package, *cells(row), "" if alone is None else f"{alone:.0e}", style=style)
    return out


def write_page(page: Path, rows: dict[str, Any]) -> None:
    """Puts the table of all models in the place of the one that the page has."""
    if missing := [name for name in MODELS if name not in rows]:
        raise SystemExit(f"The page shows all models; {', '.join(missing)} were not tried in this folder yet.")
    head = page.read_text().partition(MARK)[0]
    page.write_text("\n".join([head + MARK, "", *page_lines(rows), ""]))


def failures(rows: dict[str, Any]) -> list[str]:
    """A sentence for each failure, which says where it was met."""
    met: dict[tuple[str, str], list[str]] = {}
    for name, row in rows.items():
        for where, what in row["failed"].items():
            met.setdefault((name, what), []).append(where)
    return [f"{name}, {', '.join(places)}: {what}" for (name, what), places in met.items()]


def page_lines(rows: dict[str, Any]) -> list[str]:
    """The same in Markdown, with what had to be changed and what failed."""
    ran = ", ".join(f"{name} {number}" for name, number in versions().items())
    right = sum(not row["failed"] for row in rows.values())
    lines = [f"With {ran}, {right} of {len(rows)} are right at every stage.", ""]
    lines += [f"| model | package | changed in model or loss | {' | '.join(STAGES)} |", f"|---|---|---|{'--:|' * 4}"]
    for name, row in rows.items():
        model = MODELS[name]
        lines.append(f"| {name} | {PACKAGES[model.package].label} | {model.changed} | {' | '.join(cells(row))} |")
    said = failures(rows)
    lines += [""] * bool(said) + [f"- {line}" for line in said]
    reasons = {package.label: package.why_no_deps for package in PACKAGES.values() if package.why_no_deps}
    lines += ["", "Installed with `--no-deps`:", ""]
    return lines + [f"- {label}, because {why}" for label, why in reasons.items()]


if __name__ == "__main__":
    main()
