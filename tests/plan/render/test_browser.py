"""The report in Chromium: it runs without a complaint, asks the network for nothing, reads on both backgrounds and at
any width, and its search and zoom do what they say.

A script that this test adds at the end of the report uses it and tells a page around it, which the browser prints.
"""

import dataclasses
import html
import json
import re
import shutil
import subprocess

import pytest

from jzero.explain.layouts import Layouts, LeafLayout
from jzero.plan.render import report_html

pytestmark = pytest.mark.browser

N = 1024
LEAVES = tuple(
    LeafLayout(f"h.{i}.{kind}.kernel", (1600, 1000 + i), "float32", i % 2, 2048 if i % 2 == 0 else 1024 * 2, False)
    for i in range(600)
    for kind in ("attn", "mlp")
)
LISTEN = """<script>
window.complaints = [];
for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"])
  addEventListener(kind, (event) => complaints.push(kind + ": " + (event.message ?? event.reason ?? event.blockedURI)));
for (const kind of ["error", "warn"]) console[kind] = (...words) => complaints.push(words.join(" "));
</script>"""
USE = """<script>
const seen = {dark: matchMedia("(prefers-color-scheme: dark)").matches, width: innerWidth};
const box = document.querySelector(".jz-layouts");
const rows = () => [...box.querySelectorAll("tbody tr")].map((row) => row.innerText.replace(/\\s+/g, " ").trim());
const set = (at, value) => { at.value = value; at.dispatchEvent(new Event("input")); };
const [search, device] = [box.querySelector("[type=search]"), box.querySelector("[type=number]")];
const status = () => box.querySelector("[role=status]").textContent;
seen.all = [rows().length, status()];
set(search, "h.59 ATTN");
seen.found = [rows().length, status()];
set(device, "700");
seen.held = rows();
box.querySelectorAll("tbody button")[1].click();
const parts = () => [...box.querySelectorAll(".jz-detail rect title")].map((title) => title.textContent);
seen.whole = parts().length;
for (const label of ["zoom in", "zoom in", "to higher numbers"]) box.querySelector(`[aria-label='${label}']`).click();
seen.zoomed = parts().length;
box.querySelector("[aria-label='to the chosen device']").click();
seen.near = parts();
const slider = document.querySelector(".zoom input");
set(slider, "2");
seen.stretched = document.querySelector(".zoomable svg").getAttribute("width");
set(slider, "0");
const setting = box.querySelector("select");
seen.settings = [...setting.options].map((option) => option.textContent);
setting.value = "1";
setting.dispatchEvent(new Event("change"));
seen.other = rows()[0];
set(search, "h.1");

const rgb = (text) => (text.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
const over = (front, back) => {
  const alpha = front[3] ?? 1;
  return [0, 1, 2].map((i) => front[i] * alpha + back[i] * (1 - alpha));
};
const behind = (at) => {
  if (!at) return [255, 255, 255];
  const colour = rgb(getComputedStyle(at).backgroundColor);
  return (colour[3] ?? 1) === 1 ? colour : over(colour, behind(at.parentElement));
};
const luminance = (colour) => {
  const [r, g, b] = colour.map((c) => c / 255).map((c) => (c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4));
  return .2126 * r + .7152 * g + .0722 * b;
};
seen.contrast = [];
const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const at = walker.currentNode.parentElement;
  const hidden = ["SCRIPT", "STYLE", "title", "desc", "OPTION"].includes(at.tagName);
  if (hidden || !walker.currentNode.textContent.trim()) continue;
  const style = getComputedStyle(at), back = behind(at);
  const front = over(rgb(at.namespaceURI.endsWith("svg") ? style.fill : style.color), back);
  const [low, high] = [luminance(front), luminance(back)].sort((a, b) => a - b);
  seen.contrast.push([(high + .05) / (low + .05), at.textContent.slice(0, 40)]);
}
seen.worst = seen.contrast.sort((a, b) => a[0] - b[0])[0];
seen.contrast = seen.contrast.length;
seen.overflow = document.documentElement.scrollWidth - innerWidth;
seen.loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
seen.complaints = complaints;
parent.postMessage(JSON.stringify(seen), "*");
</script>"""
AROUND = """<!doctype html><style>:root {{ color-scheme: light dark }}</style><pre id="seen"></pre>
<script>onmessage = (event) => {{ document.getElementById("seen").textContent = event.data; }};</script>
<iframe src="report.html" width="{width}" height="900" frameborder="0"></iframe>"""


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.fail("This test needs Chromium, which is not installed: on Debian, apt-get install chromium.")


@pytest.fixture(scope="module")
def page(planned, compiled_row, tmp_path_factory):
    mesh = {"replica": 2, "shard": N, "tensor": 1}
    whole = tuple(dataclasses.replace(leaf, dim=None) for leaf in LEAVES)
    rows = tuple(
        dataclasses.replace(row, layouts=Layouts(mesh, LEAVES if row is compiled_row else whole))
        for row in planned.rows
    )
    text = report_html(dataclasses.replace(planned, rows=rows), ["deepspeed.zero_optimization.stage=3"])
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(text.replace("</title>", f"</title>{LISTEN}", 1).replace("</body>", f"{USE}</body>"))
    return path


@pytest.mark.parametrize(("dark", "width"), [(False, 1600), (True, 360)], ids=["light and wide", "dark and narrow"])
def test_the_report_in_a_browser(page, tmp_path, dark, width):
    around = page.with_name(f"{width}.html")
    around.write_text(AROUND.format(width=width))  # a window cannot be so narrow, but a frame in it can
    quiet = ["background-networking", "component-update", "sync", "quic", "gpu", "extensions"]
    result = subprocess.run(
        [
            chromium(),
            *("--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in quiet)),
            f"--user-data-dir={tmp_path}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--window-size=1700,1000",
            "--virtual-time-budget=2000",
            "--dump-dom",
            around.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    written = re.search(r'<pre id="seen">(.+?)</pre>', result.stdout, re.S)
    assert written is not None, result.stderr[-2000:]
    seen = json.loads(html.unescape(written[1]))
    assert (seen["dark"], seen["width"]) == (dark, width)
    assert seen["complaints"] == []
    assert seen["loaded"] == []
    assert seen["overflow"] <= 0
    assert seen["contrast"] > 100
    assert seen["worst"][0] >= 4.5, seen["worst"]

    layouts = Layouts({"replica": 2, "shard": N, "tensor": 1}, LEAVES)
    assert seen["all"][0] == 25
    assert seen["all"][1].startswith("1,200 of 1,200 parameters")
    wanted = [leaf for leaf in LEAVES if leaf.name.startswith("h.59") and "attn" in leaf.name]
    assert seen["found"][0] == len(wanted) == 11
    assert seen["found"][1].startswith("11 of 1,200 parameters; of these, device 0 holds")
    for leaf, line in zip(wanted, seen["held"], strict=True):
        held = layouts.part(leaf, 700)[leaf.dim]
        part = [":", ":"]
        part[leaf.dim] = f"{held.start}:{held.stop}"
        expected = f"[{', '.join(part)}]" if held.start < held.stop else "padding only"
        assert expected in line, line
    assert seen["whole"] == N
    assert N // 4 <= seen["zoomed"] <= N // 4 + 1
    assert any(title.startswith("devices 700, 1724: [") for title in seen["near"])
    assert 8 <= len(seen["near"]) <= 9
    assert seen["stretched"] == "400%"
    assert seen["settings"] == ["stage 3", "stage 3, optimizer on host; stage 3, optimizer + parameters on host"]
    assert "whole on every device all of it" in seen["other"]
