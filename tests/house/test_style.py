"""What the house looks like: short files and functions, few results, names of their own, one door to JAX's inside."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "jzero"
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text()) for file in FILES}

FILE_LINES, FUNCTION_LINES, RESULTS, ROOT_FILES = 500, 60, 3, 5
UNSTABLE = re.compile(
    r"jax\.(extend|_src|interpreters|core)|from jax\.core|\.primitive\b|primitives\.|eqn\.params|\.eqns\b"
)
"""What JAX may change from one version to the next."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function of a file, methods and inner ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def tuple_sizes(annotation: ast.AST) -> Iterator[int]:
    """How many elements each `tuple[...]` within an annotation has; `tuple[x, ...]` has one."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from tuple_sizes(ast.parse(node.value, mode="eval"))
        named = isinstance(node, ast.Subscript) and ast.unparse(node.value).split(".")[-1] in ("tuple", "Tuple")
        if named and isinstance(node.slice, ast.Tuple):
            yield sum(not (isinstance(e, ast.Constant) and e.value is ...) for e in node.slice.elts)


def length(function: Function) -> int:
    """The lines of a function less those of its docstring, which may be as long as it is useful."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    return function.end_lineno - function.lineno + 1 - (first.end_lineno - first.lineno + 1 if documented else 0)


def code_lines(file: Path) -> list[str]:
    """The statements of a file without docstrings and comments, which may name what they avoid."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree).splitlines()


def test_files_are_short():
    lengths = {file: file.read_text().count("\n") for file in FILES}
    assert not {str(file): n for file, n in lengths.items() if n > FILE_LINES}


def test_functions_are_short():
    lengths = {f"{file}:{f.name}": length(f) for file, tree in TREES.items() for f in functions(tree)}
    assert not {name: n for name, n in lengths.items() if n > FUNCTION_LINES}


def test_several_results_have_names():
    assert not [
        f"{file}:{f.lineno}: {f.name} -> {ast.unparse(f.returns)}"
        for file, tree in TREES.items()
        for f in functions(tree)
        if f.returns and max(tuple_sizes(f.returns), default=0) > RESULTS
    ]


def test_no_function_is_named_like_its_module():
    assert not [
        file
        for file, tree in TREES.items()
        for node in tree.body
        if isinstance(node, Function) and node.name == Path(file).stem
    ]


@pytest.mark.parametrize("file", [file for file in TREES if file.endswith("__init__.py")])
def test_every_package_says_what_it_is_for(file):
    assert ast.get_docstring(TREES[file])


def test_the_root_holds_little():
    assert len(list(PACKAGE.glob("*.py"))) <= ROOT_FILES


def test_jax_s_unstable_surface_is_met_in_one_room():
    assert not [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in FILES
        if PACKAGE / "jaxpr" not in file.parents
        for line in code_lines(file)
        if UNSTABLE.search(line)
    ]
