// Draws the layouts of parameters: a table to search, and one parameter to zoom into. See jzero/explain/layouts.py.
function jzLayouts(root) {
  if (root.dataset.on) return;
  root.dataset.on = "1";
  const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
  const axes = (i) => ({ replica: 1, shard: 1, tensor: 1, ...data.layouts[i].mesh });
  let { replica, shard, tensor } = axes(0), groups = data.layouts[0].twoLevel ? replica : 1, nParts = shard * groups;
  const nDevices = replica * shard * tensor, page = 25;
  const state = { layout: 0, filter: "", device: 0, shown: page, leaf: 0, from: 0, to: nParts };
  const choose = (i) => {
    ({ replica, shard, tensor } = axes(i));
    groups = data.layouts[i].twoLevel ? replica : 1;
    nParts = shard * groups;
    Object.assign(state, { layout: i, from: 0, to: nParts });
  };

  const make = (tag, props = {}, ...children) => {
    const at = Object.assign(document.createElement(tag), props);
    at.append(...children);
    return at;
  };
  const draw = (tag, attributes, text = "", title = "") => {
    const at = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) at.setAttribute(key, value);
    at.textContent = text;
    if (title) at.append(draw("title", {}, title));
    return at;
  };
  const number = (n) => n.toLocaleString("en-US");
  const bytes = (n) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let i = 0;
    while (n >= 999.5 && i < 4) { n /= 1000; i++; }
    return (i === 0 || n >= 99.95 ? n.toFixed(0) : String(+n.toPrecision(3))) + " " + units[i];
  };

  // One parameter in the chosen layout.
  const look = (i) => {
    const [name, shape, dtype, itemsize] = data.leaves[i];
    const layout = data.layouts[state.layout], dim = layout.dims[i];
    const size = shape.reduce((a, b) => a * b, 1);
    const rows = dim === null ? 0 : Math.ceil(shape[dim] / nParts);
    return { name, shape, dtype, dim, rows, host: layout.host[i], size, itemsize,
      held: dim === null ? size : size / shape[dim] * rows };
  };
  // At two levels the parts of one group are neighbours: those of the first device of each group come first.
  const slot = (device) => (Math.floor(device / tensor) % shard) * groups +
    (groups > 1 ? Math.floor(device / (tensor * shard)) : 0);
  const range = (leaf, at) => [Math.min(at * leaf.rows, leaf.shape[leaf.dim]),
    Math.min((at + 1) * leaf.rows, leaf.shape[leaf.dim])];
  const part = (leaf, at) => {
    if (leaf.dim === null) return "all of it";
    const [first, last] = range(leaf, at);
    if (first === last) return "padding only";
    return "[" + leaf.shape.map((n, d) => (d === leaf.dim ? `${first}:${last}` : ":")).join(", ") + "]";
  };
  const lies = (leaf) => (leaf.dim === null ? "whole on every device" : `dimension ${leaf.dim} over ${number(nParts)}` +
    (leaf.rows * nParts === leaf.shape[leaf.dim] ? "" : `, padded to ${number(leaf.rows * nParts)}`)) +
    (leaf.host ? ", in host memory" : "");
  const holders = (at) => {
    const found = [];
    const inGroup = Math.floor(at / groups), only = groups > 1 ? at % groups : null;
    for (let r = only ?? 0; r < (only === null ? replica : only + 1); r++)
      for (let t = 0; t < tensor; t++) found.push((r * shard + inGroup) * tensor + t);
    return "device" + (found.length > 1 ? "s " : " ") + (found.length > 4 ? `${found[0]}, ${found[1]}, ... ${found.at(-1)}`
      : found.join(", "));
  };

  const select = make("select", {}, ...data.layouts.map((l, i) => make("option", { value: i, textContent: l.label })));
  const search = make("input", { type: "search", placeholder: "part of a name, or of a shape such as 4096" });
  const device = make("input", { type: "number", min: 0, max: nDevices - 1, value: 0 });
  const status = make("p", { role: "status" }), body = make("tbody"), more = make("button", { type: "button" });
  const detail = make("div", { className: "jz-detail" });
  const labelled = (text, input, className = "") => make("label", { className }, text, input);
  const bar = make("div", { className: "jz-bar" }, labelled("Search", search, "jz-grow"), labelled("Device", device));
  if (data.layouts.length > 1) bar.prepend(labelled("Setting", select, "jz-grow"));
  const head = ["parameter", "shape", "lies", "this device holds", ""].map((t) => make("th", { scope: "col", textContent: t }));

  const strip = (leaf) => {
    const svg = draw("svg", { height: 14, role: "img", "aria-label": "its place in the whole" });
    svg.append(draw("rect", { x: 0, y: 2, width: "100%", height: 10, class: "jz-track" }));
    const [first, last] = leaf.dim === null ? [0, 1] : range(leaf, slot(state.device)).map((n) => n / leaf.shape[leaf.dim]);
    svg.append(draw("rect", { x: `${first * 100}%`, y: 2, width: `${Math.max((last - first) * 100, .8)}%`, height: 10,
      class: "jz-mine" }));
    return svg;
  };
  const table = () => {
    const wanted = state.filter.toLowerCase().split(/\s+/);
    const found = [];
    let held = 0;
    for (let i = 0; i < data.leaves.length; i++) {
      const leaf = look(i);
      const text = `${leaf.name} ${leaf.shape.join("x")} ${leaf.dtype}`.toLowerCase();
      if (wanted.every((word) => text.includes(word))) { found.push(i); held += leaf.held * leaf.itemsize; }
    }
    body.replaceChildren(...found.slice(0, state.shown).map((i) => {
      const leaf = look(i);
      const name = make("button", { type: "button", className: "jz-name", textContent: leaf.name,
        onclick: () => { Object.assign(state, { leaf: i, from: 0, to: nParts }); update(); } });
      name.setAttribute("aria-pressed", String(i === state.leaf));
      return make("tr", {}, make("td", {}, name),
        make("td", { className: "jz-num", textContent: `${leaf.shape.join(" x ") || "scalar"} ${leaf.dtype}` }),
        make("td", { textContent: lies(leaf) }),
        make("td", { textContent: `${part(leaf, slot(state.device))}, ${bytes(leaf.held * leaf.itemsize)}` }),
        make("td", { style: "min-width: 90px" }, strip(leaf)));
    }));
    status.textContent = `${number(found.length)} of ${number(data.leaves.length)} parameters; of these, device ` +
      `${state.device} holds ${bytes(held)}, padding included.`;
    more.hidden = found.length <= state.shown;
    more.textContent = `Show ${number(Math.min(page * 4, found.length - state.shown))} more`;
  };

  const zoom = (factor, center = .5) => {
    const width = Math.max(Math.min((state.to - state.from) * factor, nParts), Math.min(1, nParts));
    const middle = state.from + (state.to - state.from) * center;
    state.from = Math.max(0, Math.min(middle - width * center, nParts - width));
    state.to = state.from + width;
    picture();
  };
  const pan = (share) => {
    const width = state.to - state.from;
    state.from = Math.max(0, Math.min(state.from + width * share, nParts - width));
    state.to = state.from + width;
    picture();
  };
  const svg = draw("svg", { height: 86, tabindex: 0, role: "img" });
  const heading = make("p"), button = (text, label, onclick) => {
    const at = make("button", { type: "button", textContent: text, onclick });
    at.setAttribute("aria-label", label);
    at.title = label;
    return at;
  };
  detail.append(heading, make("div", { className: "jz-bar" }, button("+", "zoom in", () => zoom(.5)),
    button("\u2212", "zoom out", () => zoom(2)), button("\u2190", "to lower numbers", () => pan(-.5)),
    button("\u2192", "to higher numbers", () => pan(.5)),
    button("Device", "to the chosen device", () => {
      const width = Math.min(nParts, 8);
      state.from = Math.max(0, Math.min(slot(state.device) + .5 - width / 2, nParts - width));
      state.to = state.from + width;
      picture();
    })), svg);
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    zoom(event.deltaY < 0 ? .7 : 1 / .7, (event.clientX - box.left) / box.width);
  }, { passive: false });
  let grabbed = null;
  svg.addEventListener("pointerdown", (event) => { grabbed = event.clientX; svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointerup", () => { grabbed = null; });
  svg.addEventListener("pointermove", (event) => {
    if (grabbed === null) return;
    const moved = grabbed - event.clientX;
    grabbed = event.clientX;
    pan(moved / svg.getBoundingClientRect().width);
  });
  svg.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(.5), "-": () => zoom(2), ArrowLeft: () => pan(-.2), ArrowRight: () => pan(.2) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // The divided dimension from left to right, one box for each part.
  const picture = () => {
    const leaf = look(state.leaf), mine = slot(state.device);
    heading.replaceChildren(make("strong", { textContent: leaf.name }), `: ${leaf.shape.join(" x ") || "scalar"} ` +
      `${leaf.dtype}, ${lies(leaf)}; ${bytes(leaf.held * leaf.itemsize)} on each.`);
    const parts = [];
    if (leaf.dim === null) {
      parts.push(draw("rect", { x: 0, y: 18, width: "100%", height: 40, class: "jz-mine" }, "", "every device holds all of it"));
      parts.push(draw("text", { x: 0, y: 76 }, `all ${number(nDevices)} devices hold the same`));
    } else {
      const scale = 100 / (state.to - state.from), at = (n) => `${(n - state.from) * scale}%`;
      const pixels = svg.getBoundingClientRect().width || 600, box = pixels * scale / 100;
      const every = Math.max(1, Math.ceil(64 / box));
      for (let n = Math.floor(state.from); n < Math.min(Math.ceil(state.to), nParts); n++) {
        const [first, last] = range(leaf, n);
        const empty = first === last, gap = box > 6 ? 1 : 0;
        const width = `calc(${scale}% - ${gap}px)`;
        const style = n === mine ? "jz-mine" : n % 2 ? "jz-odd" : "jz-even";
        const rect = draw("rect", { x: at(n), y: 18, height: 40, class: empty && n !== mine ? "jz-pad" : style }, "",
          `${holders(n)}: ${part(leaf, n)}`);
        rect.style.width = width;
        parts.push(rect);
        if (n % every === 0) {
          parts.push(draw("text", { x: at(n), y: 12 }, `${n * leaf.rows}`));
          parts.push(draw("text", { x: at(n), y: 76 }, box > 120 || (groups > 1 ? 1 : replica) * tensor === 1 ? holders(n) : `part ${n}`));
        }
      }
    }
    svg.setAttribute("aria-label", leaf.dim === null ? `${leaf.name} lies whole on every device` :
      `${leaf.name} divided into ${nParts} parts along dimension ${leaf.dim}; ${holders(mine)}: ${part(leaf, mine)}`);
    svg.replaceChildren(...parts);
  };
  const update = () => { table(); picture(); };
  search.oninput = () => { Object.assign(state, { filter: search.value, shown: page }); table(); };
  select.onchange = () => { choose(+select.value); update(); };
  device.oninput = () => {
    state.device = Math.max(0, Math.min(nDevices - 1, Math.floor(+device.value) || 0));
    update();
  };
  more.onclick = () => { state.shown += page * 4; table(); };
  addEventListener("resize", picture);
  state.leaf = data.leaves.reduce((best, _, i) => {
    const score = (j) => { const leaf = look(j); return leaf.size * (leaf.dim === null ? 1e-9 : 1); };
    return score(i) > score(best) ? i : best;
  }, 0);
  root.querySelector(".jz-static").replaceWith(bar, status, detail,
    make("table", {}, make("thead", {}, make("tr", {}, ...head)), body), more);
  update();
}
