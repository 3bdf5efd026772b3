"""A matplotlib figure that any notebook shows, whether or not pyplot was imported there. Needs matplotlib."""

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that knows how to show itself."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100, bbox_inches="tight")
        return buffer.getvalue()
