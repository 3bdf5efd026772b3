"""The report is one file that loads nothing, stays small, escapes what it is given, and says what the plan says."""

import dataclasses
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.table import Table
from typer.testing import CliRunner

from jzero.base.units import format_bytes
from jzero.cli.program import app
from jzero.explain.layouts import Layouts, LeafLayout
from jzero.plan import Recommendation
from jzero.plan.render import report_html
from jzero.plan.render.plan_table import plan_view

ROOT = Path(__file__).parents[3]
EVIL = '</script><script>alert("x")</script><b>&'


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.words, self.stack = [], [], [], []
        self.feed(text)
        self.text = " ".join(self.words)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.stack.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "data", "action") and v]

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.stack):
            self.words.append(data)


@pytest.fixture(scope="module")
def report(planned):
    return report_html(planned, ["deepspeed.zero_optimization.stage=3"])


def test_it_loads_nothing(report):
    page = Page(report)
    assert page.links == []
    assert {"link", "iframe", "object", "embed"}.isdisjoint(page.tags)
    assert "url(" not in report
    assert "@import" not in report
    assert "default-src 'none'" in report
    assert report.count("http://www.w3.org/2000/svg") == report.count("http:") + report.count(
        "https:"
    )  # a name that JavaScript asks for


def test_it_says_what_the_plan_says(report, planned, compiled_row):
    page = Page(report)
    assert planned.recommendation.reason in page.text
    assert "deepspeed.zero_optimization.stage=3" in page.text
    for row in planned.rows:
        assert format_bytes(row.closed_form_peak) in page.text
    assert format_bytes(compiled_row.peak) in page.text
    for heading in (
        "Memory of one GPU, by part",
        "Memory over the step: stage 3",
        "Timeline of a step",
        "Layout of each",
    ):
        assert heading in page.text
    for picture in ("What fills memory at the peak", "What takes longest", "optimizer state"):
        assert picture in page.text
    assert page.tags.count("title") > 10  # pictures say in words what they show
    of_the_plan = sum(isinstance(part, Table) for part in plan_view(planned).renderables)
    assert page.tags.count("table") == of_the_plan + 2 + 1  # the pictures', and the layouts' without a script


def test_without_a_compiled_program_it_says_so(planned):
    rows = tuple(dataclasses.replace(row, compiled=None) for row in planned.rows)
    page = Page(report_html(dataclasses.replace(planned, rows=rows)))
    assert "this setting was not compiled" in page.text
    assert "What takes longest" not in page.text
    assert "What the closed form reckons to be alive" in page.text


def test_thousands_of_parameters_stay_small(planned, report):
    leaves = tuple(
        LeafLayout(f"decoder.layers.{i}.self_attention.projection.kernel", (4096, 4096), "float32", i % 2, 4096, False)
        for i in range(5000)
    )
    rows = tuple(
        dataclasses.replace(row, layouts=Layouts({"replica": 1, "shard": 1024, "tensor": 1}, leaves[i:] + leaves[:i]))
        for i, row in enumerate(planned.rows)
    )
    assert len(report_html(dataclasses.replace(planned, rows=rows)).encode()) < 2_000_000
    assert len(report.encode()) < 200_000


def test_everything_is_escaped(planned):
    leaf = LeafLayout(EVIL, (8,), "float32", 0, 8, False)
    rows = tuple(
        dataclasses.replace(row, layouts=Layouts({"replica": 1, "shard": 8, "tensor": 1}, (leaf,)))
        for row in planned.rows
    )
    found = Recommendation(planned.recommendation.setting, f"Because {EVIL}", (f"Try {EVIL}",))
    evil = dataclasses.replace(planned, rows=rows, recommendation=found, refused={rows[0].setting: EVIL})
    page, plain = Page(report_html(evil, [EVIL])), Page(report_html(planned))
    assert page.tags.count("script") == plain.tags.count("script")
    assert "b" not in page.tags
    assert page.text.count(EVIL) >= 4


def test_the_command_writes_it(tmp_path):
    small = ("model.d_model=32", "model.n_layer=1", "model.seq_len=16", "data.seq_len=16", "--stages", "0")
    run = lambda path: CliRunner().invoke(
        app, ["plan", str(ROOT / "configs" / "demo.json"), *small, "--closed-form", "--html", str(path)]
    )
    result = run(tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    assert "Take stage 0" in Page((tmp_path / "report.html").read_text()).text
    for path, sentence in (
        (tmp_path / "no" / "x.html", "give a file in a folder that exists"),
        (tmp_path, "give a file"),
    ):
        result = run(path)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1
