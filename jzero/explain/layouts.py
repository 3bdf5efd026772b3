"""Which device holds which part of each parameter: as data, and as a table to search and zoom in a notebook.

The table is drawn in the browser from a few numbers a parameter, so that thousands of them on thousands of devices make
a small page. Where no script runs it shows the largest parameters.
"""

import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import jax

from jzero.base.units import format_bytes
from jzero.errors import ConfigError
from jzero.sharding.host_memory import PINNED_HOST
from jzero.sharding.placement import path_name
from jzero.sharding.trees import is_placement
from jzero.zero.build import Functional

_LARGEST = 12  # rows that are there without a script


@dataclass(frozen=True)
class LeafLayout:
    """Where a parameter lies.

    Attributes:
        name: its dotted name.
        shape: its true shape.
        dtype: in which it lasts.
        dim: the dimension that is divided over the mesh's `shard` axis, at two levels over `replica` too; None where
            every device holds all of it.
        padded: how long that dimension is with the zeros that make the parts equal.
        on_host: whether its devices keep it in host memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    dim: int | None
    padded: int
    on_host: bool


@dataclass(frozen=True)
class Layouts:
    """Where each parameter lies between steps. In a notebook it shows itself as a table.

    Attributes:
        mesh: axis -> size. A device's number counts along the last axis first.
        leaves: one entry per parameter.
        two_level: whether what is divided is divided over groups of devices too.
    """

    mesh: Mapping[str, int]
    leaves: tuple[LeafLayout, ...]
    two_level: bool = False

    @property
    def n_parts(self) -> int:
        """How many devices hold different parts."""
        return self.mesh["shard"] * (self.mesh["replica"] if self.two_level else 1)

    def part(self, leaf: LeafLayout, device: int) -> tuple[slice, ...]:
        """What a device holds of a parameter, padding left out.

        Args:
            leaf: one of `leaves`.
            device: its number in the mesh.

        Raises:
            ConfigError: there is no such device.

        Example:
            >>> leaf = LeafLayout("w", (10, 4), "float32", dim=0, padded=12, on_host=False)
            >>> Layouts({"replica": 1, "shard": 4, "tensor": 1}, (leaf,)).part(leaf, 3)
            (slice(9, 10, None), slice(0, 4, None))
            >>> Layouts({"replica": 2, "shard": 2, "tensor": 1}, (leaf,), two_level=True).part(leaf, 2)
            (slice(3, 6, None), slice(0, 4, None))
        """
        n_devices = math.prod(self.mesh.values())
        if not 0 <= device < n_devices:
            raise ConfigError(f"device {device}: the mesh has devices 0 to {n_devices - 1}.")
        whole = [slice(0, n) for n in leaf.shape]
        if leaf.dim is not None:
            n_rows, n_true = leaf.padded // self.n_parts, leaf.shape[leaf.dim]
            replica, at = divmod(device // self.mesh["tensor"], self.mesh["shard"])
            if self.two_level:  # the parts of one group are neighbours
                at = at * self.mesh["replica"] + replica
            first = at * n_rows
            whole[leaf.dim] = slice(min(first, n_true), min(first + n_rows, n_true))
        return tuple(whole)

    def in_words(self, leaf: LeafLayout) -> str:
        """How a parameter lies over the devices.

        Example:
            >>> leaf = LeafLayout("w", (10, 4), "float32", dim=0, padded=12, on_host=True)
            >>> Layouts({"replica": 1, "shard": 4, "tensor": 1}, (leaf,)).in_words(leaf)
            'dimension 0 over 4 devices, padded to 12, in host memory'
        """
        where = ", in host memory" if leaf.on_host else ""
        if leaf.dim is None:
            return f"whole on every device{where}"
        padded = f", padded to {leaf.padded}" if leaf.padded != leaf.shape[leaf.dim] else ""
        groups = f" in {self.mesh['replica']} groups" if self.two_level else ""
        return f"dimension {leaf.dim} over {self.n_parts} devices{groups}{padded}{where}"

    def _repr_html_(self) -> str:
        return layouts_html({"": self})


def parameter_layouts(functional: Functional) -> Layouts:
    """Lists where each parameter lies between steps.

    Args:
        functional: from `jzero.functional`; `engine.functional` of an engine.

    Returns:
        One entry per parameter, in the order of the parameter tree.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(functional.placements.params, is_leaf=is_placement)
    stored = treedef.flatten_up_to(functional.whole.params)
    return Layouts(
        dict(functional.spec.mesh.shape),
        tuple(
            LeafLayout(
                path_name(path),
                tuple(placement.shape),
                x.dtype.name,
                placement.dim,
                0 if placement.dim is None else placement.padded_shape[placement.dim],
                x.sharding.memory_kind == PINNED_HOST,
            )
            for (path, placement), x in zip(paths, stored, strict=True)
        ),
        functional.spec.two_level,
    )


def layouts_html(named: Mapping[str, Layouts]) -> str:
    """The table, with a choice of several layouts of the same parameters.

    Args:
        named: what each is called -> layouts on meshes of the same devices.

    Returns:
        A `<div>` with its own style and script; it loads nothing.
    """
    labels: dict[str, tuple[Layouts, list[str]]] = {}
    for label, some in named.items():
        lies = [(leaf.dim, leaf.on_host) for leaf in some.leaves]
        labels.setdefault(f"{dict(some.mesh)} {some.two_level} {lies}", (some, []))[1].append(label)
    first = next(iter(named.values()))
    data = {
        "leaves": [[leaf.name, leaf.shape, leaf.dtype, _itemsize(leaf.dtype)] for leaf in first.leaves],
        "layouts": [
            {
                "label": "; ".join(names),
                "mesh": dict(some.mesh),
                "twoLevel": some.two_level,
                "dims": [leaf.dim for leaf in some.leaves],
                "host": [int(leaf.on_host) for leaf in some.leaves],
            }
            for some, names in labels.values()
        ],
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # whatever a name holds, it ends no script
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    return (
        f'<div class="jz-layouts" id="jz-{key}"><style>{asset(__package__, "layouts.css")}</style>'
        f'<script type="application/json">{text}</script>{_static_table(first)}'
        f"<script>{asset(__package__, 'layouts.js')}\n"
        f"for (const at of document.querySelectorAll('#jz-{key}')) jzLayouts(at);</script></div>"
    )


@cache
def asset(package: str, name: str) -> str:
    """The text of a style sheet or script that comes with a package."""
    return (resources.files(package) / name).read_text()


def _itemsize(dtype: str) -> int:
    return jax.numpy.dtype(dtype).itemsize


def _static_table(some: Layouts) -> str:
    size = lambda leaf: math.prod(leaf.shape) * _itemsize(leaf.dtype)
    largest = sorted(some.leaves, key=size, reverse=True)[:_LARGEST]
    rows = [
        ("parameter", "shape", "lies", "size"),
        *(_static_row(leaf, some.in_words(leaf), size(leaf)) for leaf in largest),
    ]
    cells = lambda tag, row: "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows[1:])
    caption = f"The {len(largest)} largest of {len(some.leaves):,} parameters on a mesh of " + " x ".join(
        f"{name} {n}" for name, n in some.mesh.items()
    )
    return (
        f"<div class=jz-static><table><caption>{html.escape(caption)}</caption>"
        f"<thead><tr>{cells('th', rows[0])}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _static_row(leaf: LeafLayout, lies: str, n_bytes: int) -> Sequence[str]:
    return leaf.name, " x ".join(map(str, leaf.shape)) or "scalar", lies, format_bytes(n_bytes)
