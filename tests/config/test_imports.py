"""Reading a configuration takes neither JAX nor the parsers of other formats, and its rooms import one way."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ORDER = ("schema", "sources", "resolve", "config", "run", "show")
ALONE = """
import sys, types
package = types.ModuleType("jzero")  # whose own __init__ imports everything
package.__path__ = ["jzero"]
sys.modules["jzero"] = package
from jzero.config import Config
Config.load({"train_batch_size": 8}).resolve(world=8)
print(*sorted({"hjson", "yaml", "rich", "jax", "numpy"} & set(sys.modules)))
"""


def test_reading_a_configuration_loads_no_heavy_library():
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_rooms_import_one_way():
    wrong = []
    for file in (ROOT / "jzero" / "config").rglob("*.py"):
        room = file.relative_to(ROOT / "jzero" / "config").with_suffix("").parts[0]
        for node in ast.walk(ast.parse(file.read_text())):
            name = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if room in ORDER and name.startswith("jzero.config."):
                imported = name.split(".")[2]
                wrong += [f"{file.name}: {name}"] if ORDER.index(imported) > ORDER.index(room) else []
    assert wrong == []
