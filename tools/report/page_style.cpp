#include "tools/report/page_style.h"

namespace lockstep::inline internal {

// The curves have the colours of Okabe and Ito, the light one darker and the dark one lighter where
// the contrast with the page would be below 3:1.
const char* page_style() {
  return R"css(
:root { color-scheme: light dark;
  --page: #ffffff; --card: #f6f7f9; --text: #1c2024; --soft: #5b6570; --line: #d9dde2; --axis: #8a939d;
  --c0: #0072b2; --c1: #d55e00; --c2: #00795a; --c3: #a8508a; --c4: #8a6d00; --c5: #4a4f55; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171a; --card: #1d2125; --text: #e8eaed; --soft: #a4adb6; --line: #343a41; --axis: #7d8791;
  --c0: #56b4e9; --c1: #f0894a; --c2: #2fc297; --c3: #d993bf; --c4: #e0c03a; --c5: #c9d1d9; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 60px; max-width: 1180px; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 34px 0 10px; }
h3 { font-size: 15px; margin: 0; }
.sub { color: var(--soft); margin: 2px 0 18px; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; }
.tile { background: var(--card); border-radius: 8px; padding: 10px 16px; min-width: 120px; }
.tile b { display: block; font-size: 21px; }
.tile span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 16px; }
.card { background: var(--card); border-radius: 8px; padding: 14px 16px 8px; min-width: 0; }
.legend { margin: 0; font-size: 13px; overflow-wrap: anywhere; }
.legend span { color: var(--c); font-weight: 600; margin-left: 8px; }
svg { display: block; width: 100%; height: auto; overflow: visible; font-size: 12.5px; }
svg text { font-family: inherit; fill: var(--c, var(--text)); }
.tick, .label { --c: var(--soft); }
.grid { stroke: var(--line); }
.axis, .resumed, .pointer line { stroke: var(--axis); }
.resumed { stroke-dasharray: 4 4; }
.c0, .forward { --c: var(--c0); } .c1, .exchange { --c: var(--c1); } .c2, .device { --c: var(--c2); }
.c3 { --c: var(--c3); } .c4, .backward { --c: var(--c4); } .c5 { --c: var(--c5); }
.curve { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.dot, .lanes rect { fill: var(--c); }
.pointer rect { fill: var(--page); stroke: var(--line); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
.good { color: var(--c2); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
pre { margin: 6px 0; white-space: pre-wrap; font-size: 13px; }
ul { margin: 4px 0; padding-left: 20px; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 0 40px; }
)css";
}

const char* page_script() {
  return R"js(
"use strict";
for (const chart of document.querySelectorAll("svg.chart")) {
  const curves = JSON.parse(chart.dataset.curves);
  const pointer = chart.querySelector(".pointer");
  const make = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    pointer.append(element);
    return element;
  };
  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][0] < x) low = middle; else high = middle; }
    return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
  };
  chart.addEventListener("pointermove", event => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    pointer.replaceChildren();
    const found = curves.map((curve, i) => ({name: curve.name, color: "c" + i % 6, point: nearest(curve.points, place.x)}));
    const closest = found.reduce((a, b) => Math.abs(a.point[0] - place.x) <= Math.abs(b.point[0] - place.x) ? a : b).point;
    make("line", {x1: closest[0], x2: closest[0], y1: chart.dataset.top, y2: chart.dataset.floor});
    const lines = [["", "step " + closest[2]]];
    for (const one of found) {
      if (one.point[2] !== closest[2] && Math.abs(one.point[0] - closest[0]) > 12) continue;
      make("circle", {class: "dot " + one.color, cx: one.point[0], cy: one.point[1], r: 4});
      lines.push([one.color, one.name + " " + one.point[3] + (one.point[2] !== closest[2] ? " (step " + one.point[2] + ")" : "")]);
    }
    const box = make("rect", {rx: 4});
    const texts = lines.map(([color, text], i) => make("text", {class: color, y: 16 + 17 * i + +chart.dataset.top}, text));
    const width = Math.max(...texts.map(text => text.getComputedTextLength())) + 16;
    const left = closest[0] + 12 + width > 556 ? closest[0] - 12 - width : closest[0] + 12;
    for (const text of texts) text.setAttribute("x", left + 8);
    for (const [key, value] of [["x", left], ["y", chart.dataset.top], ["width", width], ["height", 8 + 17 * lines.length]]) box.setAttribute(key, value);
  });
  chart.addEventListener("pointerleave", () => pointer.replaceChildren());
}
)js";
}

}  // namespace lockstep::inline internal
