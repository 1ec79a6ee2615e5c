// An SVG chart over time: lines or steps, a limit line, and a cursor for mouse, touch and arrow keys.

import { make, makeSvg, setText } from "./dom.js";
import { time, zone } from "./format.js";
import { GAP, LETTER, apart, day, tickLabel, timeTicks, valueTicks } from "./scales.js";

const MARGIN = { top: 10, right: 12, bottom: 22, left: 48 };

/**
 * A chart. `format` turns a value into text; with `whole` the ticks are whole numbers.
 *
 * `update({ series, limit, until })`: `series` is a list of `{ name, kind, points, area }`, `points` of `[time, value]`,
 * oldest first; `limit` is null or `{ value, text }`; `until` is the time at the right edge.
 */
export class Chart {
  constructor({ title, format, whole = false, stepped = false, height = 170 }) {
    this.format = format;
    this.whole = whole;
    this.stepped = stepped;
    this.height = height;
    this.title = title;
    this.data = null;
    this.cursor = null;
    this.svg = makeSvg("svg", { role: "img", tabindex: "0", height, "aria-label": `${title}, not loaded yet` });
    this.heading = make("span", { class: "chart-title" }, title);
    this.readout = make("span", { class: "readout", role: "status" });
    this.keys = make("span", { class: "keys" });
    this.element = make(
      "figure",
      { class: "chart" },
      make("figcaption", {}, this.heading, this.keys, this.readout),
      this.svg,
    );
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.setCursor(null));
    this.svg.addEventListener("blur", () => this.setCursor(null));
    this.svg.addEventListener("keydown", (event) => this.step(event));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  update(data) {
    this.data = data;
    this.keys.replaceChildren(
      ...(data.series.length > 1 ? data.series : []).map(({ name, kind }) =>
        make("span", { class: `key line-${kind}` }, name),
      ),
    );
    this.draw();
  }

  /** Change the chart's title. */
  rename(title) {
    this.title = title;
    setText(this.heading, title);
  }

  close() {
    this.observer.disconnect();
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || this.data === null) {
      return;
    }
    const { series, limit, until } = this.data;
    const points = series.flatMap((one) => one.points);
    const from = Math.min(...points.map(([at]) => at), until - 60);
    const most = Math.max(...points.map(([, value]) => value), limit?.value ?? 0);
    const ticks = valueTicks(most, this.height > 140 ? 4 : 2, this.whole);
    const top = ticks[ticks.length - 1];
    const inner = { width: width - MARGIN.left - MARGIN.right, height: this.height - MARGIN.top - MARGIN.bottom };
    this.scale = {
      from,
      until,
      x: (at) => MARGIN.left + ((at - from) / (until - from)) * inner.width,
      y: (value) => MARGIN.top + (1 - value / top) * inner.height,
    };
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("aria-label", this.describe());
    this.marks = makeSvg("g", { class: "cursor" });
    this.svg.replaceChildren(
      ...this.axes(width, ticks, Math.max(Math.floor(inner.width / 76), 2)),
      ...series.flatMap((one) => this.lines(one)),
      ...(limit ? this.limit(limit, width) : []),
      this.marks,
    );
    this.showCursor();
  }

  axes(width, ticks, wanted) {
    const { x, y, from, until } = this.scale;
    const bottom = this.height - MARGIN.bottom;
    const rows = ticks.flatMap((value) => [
      makeSvg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      makeSvg("text", { class: "tick", x: MARGIN.left - 7, y: y(value) + 4, "text-anchor": "end" }, this.format(value)),
    ]);
    const times = timeTicks(from, until, wanted);
    const last = makeSvg("text", { class: "tick zone", x: width - MARGIN.right, y: bottom + 16, "text-anchor": "end" }, `${day(until)} ${zone(until)}`);
    const labels = times.ticks.map((at) => ({ at: x(at), text: tickLabel(at, times.step, day(from) !== day(until)) }));
    const columns = apart(labels, { from: MARGIN.left - 14, until: width - MARGIN.right - last.textContent.length * LETTER - GAP }).map(({ at, text }) =>
      makeSvg("text", { class: "tick time", x: at, y: bottom + 16, "text-anchor": "middle" }, text),
    );
    return [...rows, ...columns, last];
  }

  lines({ kind, points, area }) {
    if (!points.length) {
      return [];
    }
    const { x, y, until } = this.scale;
    const last = points[points.length - 1];
    const drawn = this.stepped ? [...points, [until, last[1]]] : points;
    let path = `M${x(drawn[0][0]).toFixed(1)},${y(drawn[0][1]).toFixed(1)}`;
    for (const [at, value] of drawn.slice(1)) {
      path += this.stepped ? `H${x(at).toFixed(1)}V${y(value).toFixed(1)}` : `L${x(at).toFixed(1)},${y(value).toFixed(1)}`;
    }
    const line = makeSvg("path", { class: `line line-${kind}`, d: path });
    const end = x(drawn[drawn.length - 1][0]).toFixed(1);
    const below = `${path}L${end},${y(0)}L${x(drawn[0][0]).toFixed(1)},${y(0)}Z`;
    return area ? [makeSvg("path", { class: `area area-${kind}`, d: below }), line] : [line];
  }

  limit({ value, text }, width) {
    const at = this.scale.y(value);
    const right = width - MARGIN.right - 4;
    const { x, y } = this.scale;
    // A line that rises to the limit beside a label at the right would cross it.
    const isCrossed = this.data.series.some(({ points }) => {
      const before = points.findLast(([when]) => x(when) < right - text.length * LETTER) ?? points[0];
      return points.length && y(before[1]) > at + 4 && y(points[points.length - 1][1]) < at + 18;
    });
    const place = isCrossed ? { x: MARGIN.left + 4, "text-anchor": "start" } : { x: right, "text-anchor": "end" };
    return [
      makeSvg("line", { class: "limit", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }),
      makeSvg("text", { class: "limit-text", ...place, y: at + 14 }, text),
    ];
  }

  point(event) {
    const { x, from, until } = this.scale ?? {};
    if (x) {
      const place = (event.clientX - this.svg.getBoundingClientRect().left - x(from)) / (x(until) - x(from));
      this.setCursor(from + Math.min(Math.max(place, 0), 1) * (until - from));
    }
  }

  step(event) {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const times = [...new Set(this.data?.series.flatMap((one) => one.points.map(([at]) => at)))].sort((a, b) => a - b);
    if (!direction || !times.length) {
      return;
    }
    event.preventDefault();
    const near = this.cursor === null ? times.length : times.findLastIndex((at) => at <= this.cursor);
    this.setCursor(times[Math.min(Math.max(near + direction, 0), times.length - 1)]);
  }

  setCursor(at) {
    this.cursor = at;
    this.showCursor();
  }

  showCursor() {
    if (this.cursor === null || !this.scale) {
      setText(this.readout, "");
      this.marks?.replaceChildren();
      return;
    }
    const { x, y } = this.scale;
    const found = this.data.series
      .map((one) => ({ ...one, at: one.points.findLast(([when]) => when <= this.cursor) ?? one.points[0] }))
      .filter((one) => one.at);
    const place = x(this.cursor);
    this.marks.replaceChildren(
      makeSvg("line", { x1: place, x2: place, y1: MARGIN.top, y2: this.height - MARGIN.bottom }),
      ...found.map((one) => makeSvg("circle", { class: `dot-${one.kind}`, cx: this.stepped ? place : x(one.at[0]), cy: y(one.at[1]), r: 3.5 })),
    );
    const values = found.map((one) => `${found.length > 1 ? `${one.name} ` : ""}${this.format(one.at[1])}`);
    setText(this.readout, `${time(this.cursor)}: ${values.join(", ")}`);
  }

  describe() {
    const parts = this.data.series
      .filter((one) => one.points.length)
      .map((one) => `${one.name}: ${this.format(one.points[one.points.length - 1][1])} at last`);
    return `${this.title}. ${parts.join("; ") || "nothing yet"}`;
  }
}

/** Return per-second rates between consecutive points; `value(point)` is a running total. */
export function ratesOf(points, value) {
  const rates = [];
  for (let index = 1; index < points.length; index += 1) {
    const seconds = points[index].time - points[index - 1].time;
    if (seconds > 0) {
      rates.push([points[index].time, Math.max(value(points[index]) - value(points[index - 1]), 0) / seconds]);
    }
  }
  return rates;
}
