// A plan's error against ε or charged answers, on logarithmic axes; marks the chosen point and hatches vacuous errors.

import { make, makeSvg, setText } from "./dom.js";
import { bound, number } from "./format.js";
import { GAP, LETTER, apart, logTicks } from "./scales.js";

const MARGIN = { top: 24, right: 16, bottom: 38, left: 56 };
const HEIGHT = 280;
let patterns = 0;

/** `update({ against, chosen, method, lines, complete })` takes the parts of /api/curves together. */
export class CurveChart {
  constructor() {
    patterns += 1;
    this.pattern = `vacuous-${patterns}`;
    this.svg = makeSvg("svg", { role: "img", height: HEIGHT, "aria-label": "Error, not loaded yet" });
    this.keys = make("span", { class: "keys" });
    this.note = make("p", { class: "quiet" });
    this.element = make("figure", { class: "chart curve" }, make("figcaption", {}, this.keys), this.svg, this.note);
    this.data = null;
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
  }

  update(data) {
    this.data = data;
    this.keys.replaceChildren(...data.lines.map(({ method }, index) => key(method, index, method === data.method)));
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || this.data === null) {
      return;
    }
    const { lines, chosen, method, against, complete } = this.data;
    const points = lines.flatMap((one) => one.points).filter(({ alpha }) => Number.isFinite(alpha) && alpha > 0);
    const word = against === "epsilon" ? "ε" : "charged answers";
    if (!points.length) {
      this.svg.replaceChildren();
      setText(this.note, complete ? "No calibration fits these numbers." : "");
      return;
    }
    const [left, right] = bounds(points.map(({ value }) => value));
    const [low, high] = bounds(points.map(({ alpha }) => alpha));
    const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    const x = (value) => MARGIN.left + (Math.log(value / left) / Math.log(right / left)) * inner.width;
    const y = (alpha) => MARGIN.top + (1 - Math.log(alpha / low) / Math.log(high / low)) * inner.height;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("width", width);
    this.svg.replaceChildren(
      this.hatch(),
      ...this.axes({ x, y, width, word, range: [left, right, low, high] }),
      ...this.vacuous(points, y, width),
      ...lines.flatMap((line, index) => draw(line, index, line.method === method, { x, y })),
      ...this.mark(lines, method, chosen, word, { x, y }),
    );
    setText(this.note, "");
  }

  hatch() {
    const stripe = makeSvg("path", { d: "M0,8 L8,0", class: "hatch" });
    return makeSvg("defs", {}, makeSvg("pattern", { id: this.pattern, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, stripe));
  }

  axes({ x, y, width, word, range: [left, right, low, high] }) {
    const bottom = HEIGHT - MARGIN.bottom;
    const rows = logTicks(low, high).flatMap((value) => [
      makeSvg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      makeSvg("text", { class: "tick", x: MARGIN.left - 7, y: y(value) + 4, "text-anchor": "end" }, number(value)),
    ]);
    const labels = logTicks(left, right).map((value) => ({ at: x(value), text: number(value) }));
    const columns = apart(labels, { from: MARGIN.left - 4 * LETTER, until: width }).map(({ at, text }) => makeSvg("text", { class: "tick", x: at, y: bottom + 16, "text-anchor": "middle" }, text));
    const names = [
      makeSvg("text", { class: "tick", x: width - MARGIN.right, y: bottom + 33, "text-anchor": "end" }, word),
      makeSvg("text", { class: "tick", x: 8, y: 14, "text-anchor": "start" }, "error α"),
    ];
    return [...rows, ...columns, ...names];
  }

  /** Hatch the errors that even a constant answer would not exceed. */
  vacuous(points, y, width) {
    const least = Math.min(...points.filter((one) => one.vacuous).map(({ alpha }) => alpha));
    if (!Number.isFinite(least)) {
      return [];
    }
    const height = Math.max(y(least) - MARGIN.top, 4);
    return [
      makeSvg("rect", { class: "vacuous", x: MARGIN.left, y: MARGIN.top, width: width - MARGIN.left - MARGIN.right, height, fill: `url(#${this.pattern})` }),
      makeSvg("text", { class: "tick vacuous-text", x: width - MARGIN.right - 4, y: Math.min(MARGIN.top + height + 14, HEIGHT - MARGIN.bottom - 6), "text-anchor": "end" }, "above: vacuous"),
    ];
  }

  mark(lines, method, chosen, word, { x, y }) {
    const point = lines.find((one) => one.method === method)?.points.find(({ value }) => value === chosen);
    if (!point) {
      this.svg.setAttribute("aria-label", `Error against ${word}`);
      return [];
    }
    const label = `${word} ${number(chosen)}: α ${bound(point.alpha)}${point.vacuous ? ", vacuous" : ""}`;
    this.svg.setAttribute("aria-label", `Error against ${word}. Chosen: ${label}`);
    const at = x(chosen);
    const half = (label.length * LETTER) / 2;
    const middle = Math.min(Math.max(at, MARGIN.left + half), this.element.clientWidth - MARGIN.right - half);
    return [
      makeSvg("line", { class: "chosen", x1: at, x2: at, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      makeSvg("circle", { class: "chosen-dot", cx: at, cy: y(point.alpha), r: 5 }),
      makeSvg("text", { class: "chosen-text", x: middle, y: Math.max(y(point.alpha) - GAP, MARGIN.top + 22), "text-anchor": "middle" }, label),
    ];
  }
}

/** A legend entry: a piece of the line and its calibration. */
function key(method, index, isChosen) {
  const piece = makeSvg("line", { class: lineClass(index, isChosen), x1: 0, x2: 28, y1: 5, y2: 5 });
  return make("span", { class: "curve-key" }, makeSvg("svg", { width: 28, height: 10, "aria-hidden": "true" }, piece), `${method}${isChosen ? " (chosen)" : ""}`);
}

function lineClass(index, isChosen) {
  return `line curve-${index % 5}${isChosen ? " is-chosen" : ""}`;
}

function bounds(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  return high > low ? [low, high] : [low / 2, low * 2];
}

function draw({ points }, index, isChosen, { x, y }) {
  const drawn = points.filter(({ alpha }) => Number.isFinite(alpha) && alpha > 0);
  const path = drawn.map(({ value, alpha }, place) => `${place ? "L" : "M"}${x(value).toFixed(1)},${y(alpha).toFixed(1)}`).join("");
  const dots = drawn.map(({ value, alpha, vacuous }) => makeSvg("circle", { class: `curve-dot curve-${index % 5}${vacuous ? " hollow" : ""}`, cx: x(value), cy: y(alpha), r: 2.5 }));
  return [makeSvg("path", { class: lineClass(index, isChosen), d: path }), ...dots];
}
