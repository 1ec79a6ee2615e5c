// A chart of answers: a dot for each number, a thin bar of its error bound and a thick one of its confidence interval.

import { make, makeSvg } from "./dom.js";
import { number, within } from "./format.js";
import { valueTicks } from "./scales.js";

const ROW = 24;
const MARGIN = { top: 6, right: 16, bottom: 24 };
const MOST_ROWS = 60;
const HALF_LETTER = 4; // the last label of the axis ends within the chart

/** Draw a chart of rows `{ name, estimate, alpha, low, high }`; it is redrawn when its width changes. */
export function barChart(rows) {
  const shown = rows.filter(({ estimate }) => estimate !== null && estimate !== undefined).slice(0, MOST_ROWS);
  const svg = makeSvg("svg", { role: "img", "aria-label": shown.map(({ name, estimate, alpha }) => `${name}: ${within(estimate, alpha)}`).join("; ") });
  const note = rows.length > MOST_ROWS ? make("p", { class: "quiet" }, `The first ${MOST_ROWS} of ${rows.length}; the table has all of them.`) : null;
  const element = make("figure", { class: "chart bars" }, svg, note);
  const observer = new ResizeObserver(() => draw());
  observer.observe(element);

  function draw() {
    const width = element.clientWidth;
    if (!width || !shown.length) {
      return;
    }
    const longest = Math.max(...shown.map(({ name }) => name.length));
    const left = Math.min(Math.max(longest * 7 + 12, 40), width * 0.4);
    const ends = shown.flatMap(({ estimate, alpha, low: least, high: most }) => [estimate - (alpha ?? 0), estimate + (alpha ?? 0), least ?? estimate, most ?? estimate]);
    const low = Math.min(0, ...ends);
    const high = Math.max(0, ...ends);
    const ticks = axis(low, high, Math.min(Math.max(Math.floor((width - left) / 80), 2), 5));
    const [first, last] = [Math.min(low, ticks[0]), Math.max(high, ticks[ticks.length - 1])];
    const x = (value) => left + ((value - first) / (last - first || 1)) * (width - left - MARGIN.right);
    const height = MARGIN.top + shown.length * ROW + MARGIN.bottom;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    const bottom = height - MARGIN.bottom;
    svg.replaceChildren(
      ...ticks.flatMap((value) => [
        makeSvg("line", { class: value === 0 ? "zero" : "grid", x1: x(value), x2: x(value), y1: MARGIN.top, y2: bottom }),
        makeSvg("text", { class: "tick", x: Math.min(x(value), width - number(value).length * HALF_LETTER), y: bottom + 16, "text-anchor": "middle" }, number(value)),
      ]),
      ...shown.flatMap((row, index) => mark(row, MARGIN.top + (index + 0.5) * ROW, x, left)),
    );
  }

  return { element, close: () => observer.disconnect() };
}

/** Return multiples of a round number, from at most `low` to at least `high`. */
function axis(low, high, wanted) {
  const [, step] = valueTicks(high - low, wanted);
  const ticks = [];
  for (let index = Math.floor(low / step + 1e-9); index * step < high + step * 0.999; index += 1) {
    ticks.push(index * step);
  }
  return ticks;
}

function mark({ name, estimate, alpha, low, high }, y, x, left) {
  const label = makeSvg("text", { class: "tick name", x: left - 8, y: y + 4, "text-anchor": "end" }, shorten(name, Math.floor((left - 10) / 6.5)));
  const dot = makeSvg("circle", { class: "estimate", cx: x(estimate), cy: y, r: 4 });
  const sure = typeof low === "number" ? [makeSvg("line", { class: "interval", x1: x(low), x2: x(high), y1: y, y2: y })] : [];
  if (alpha === null || alpha === undefined) {
    return [label, ...sure, dot];
  }
  const [from, to] = [x(estimate - alpha), x(estimate + alpha)];
  const ends = [from, to].map((at) => makeSvg("line", { class: "error", x1: at, x2: at, y1: y - 5, y2: y + 5 }));
  return [label, makeSvg("line", { class: "error", x1: from, x2: to, y1: y, y2: y }), ...ends, ...sure, dot];
}

function shorten(text, letters) {
  return text.length > letters ? `${text.slice(0, Math.max(letters - 1, 1))}…` : text;
}
