// Gives every wide picture a slider that stretches it along its axis.
for (const box of document.querySelectorAll(".zoomable")) {
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: 6, step: 0.1, value: 0 });
  const label = Object.assign(document.createElement("label"), { className: "zoom", textContent: "Zoom" });
  label.append(slider);
  slider.oninput = () => {
    const middle = (box.scrollLeft + box.clientWidth / 2) / box.scrollWidth;
    box.firstElementChild.setAttribute("width", `${100 * 2 ** slider.value}%`);
    box.scrollLeft = middle * box.scrollWidth - box.clientWidth / 2;
  };
  (box.closest(".plot") ?? box).before(label);
}
