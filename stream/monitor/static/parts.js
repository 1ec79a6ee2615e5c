// Small elements that several views use.

import { make, makeSvg, setAttribute, setText } from "./dom.js";
import { amount, count, mainAmount, percent, periodText, plural, rate, rateOver, time, unitOf } from "./format.js";
import { route } from "./routes.js";

const SIGNS = { open: "●", exhausted: "◐", halted: "■", closed: "○" };
const ENDINGS = { halted: "halting", closed: "closing" };

/** A state as a color, a sign and a word; also for an open stream that is ending or that does not answer. */
export function stateBadge() {
  const sign = make("span", { "aria-hidden": "true" });
  const word = make("span");
  const element = make("span", { class: "badge" }, sign, word);
  return {
    element,
    update({ state, ending = null, refused = null }) {
      const ends = state === "open" && ending !== null;
      const stuck = !ends && refused !== null;
      setAttribute(element, "class", `badge state-${ends ? "ending" : stuck ? "halted" : state}`);
      setText(sign, ends ? "◌" : stuck ? "▲" : SIGNS[state]);
      setText(word, ends ? ENDINGS[ending] : stuck ? "not answering" : state);
    },
  };
}

/** Say since when no window of a live topic was answered, and what may be the cause. */
export function stallText({ since, feed_runs: runs }) {
  const last = since === null ? "not asked yet" : `not asked since ${time(since)}`;
  return `${last}, ${runs ? "feed or workers are behind, or refuse the topic: see their logs" : "no feed runs"}`;
}

/** A bar of a budget: spent, granted but not spent, refunded, never granted. Its label has the same in words. */
export function burnBar() {
  const parts = ["spent", "held", "refunded", "left"].map((name) => make("span", { class: `burn-${name}` }));
  const element = make("div", { class: "burn", role: "img", "aria-label": "Budget, not loaded yet" }, parts);
  return {
    element,
    update(row) {
      const unit = unitOf(row);
      const total = row.total[unit] || 1;
      const left = Math.max(row.left[unit], 0);
      const spent = Math.min(row.spent[unit], Math.max(total - left, 0)); // a budget that renews also counts what earlier periods spent
      const held = Math.max(total - left - spent, 0);
      const refunded = Math.min(row.refunded[unit], left);
      const shares = [spent, held, refunded, left - refunded].map((part) => part / total);
      shares.forEach((share, index) => {
        parts[index].style.width = `${(share * 100).toFixed(3)}%`;
        parts[index].hidden = share <= 0;
      });
      setAttribute(element, "data-low", row.left_share < 0.1);
      setAttribute(element, "aria-label", describeBudget(row));
    },
  };
}

function describeBudget(row) {
  const unit = unitOf(row);
  return (
    `Of ${amount(row.total)}: granted ${mainAmount(row.granted, unit)}, spent ${mainAmount(row.spent, unit)}, ` +
    `refunded ${mainAmount(row.refunded, unit)}, left ${mainAmount(row.left, unit, true)}, which is ${percent(row.left_share)}`
  );
}

/** The legend of burnBar's colors. */
export function burnLegend() {
  const entries = [
    ["spent", "spent"],
    ["held", "granted, not spent"],
    ["refunded", "refunded"],
    ["left", "left"],
  ];
  return make(
    "ul",
    { class: "legend" },
    entries.map(([name, text]) => make("li", {}, make("span", { class: `swatch burn-${name}`, "aria-hidden": "true" }), text)),
  );
}

/** A bar of the charged answers that are used and that the grant pays for; "once" if one charge pays for all answers. */
export function cutoffBar() {
  const text = make("span", { class: "figure" });
  const used = make("span");
  const track = make("span", { class: "track", "aria-hidden": "true" }, used);
  const element = make("span", { class: "cutoff" }, text, track);
  return {
    element,
    update({ tops_left: left, cutoff, state }) {
      const limited = cutoff !== null;
      // An answer with an alpha costs more or less than one charge, so the charged answers may differ from the used charges.
      const charges = cutoff - left;
      setText(text, limited ? `${count(charges)} of ${count(cutoff)}` : "once");
      track.hidden = !limited;
      if (limited) {
        used.style.width = `${(charges / cutoff) * 100}%`;
      }
      setAttribute(element, "data-level", limited && state === "open" && charges >= 0.9 * cutoff ? "low" : state);
    },
  };
}

const FIELDS = { charged: "above", free: "below" };
const WINDOWS = [[3600, "1 h"], [600, "10 min"], [60, "1 min"]];

/** The last minute's rate of `charged` or `free` answers, with bars for the last hour, ten minutes and minute relative to the largest. */
export function rateCell(kind) {
  const text = make("span", { class: "figure" });
  const bars = WINDOWS.map((_, index) => makeSvg("rect", { x: index * 6, width: 4, rx: 1 }));
  const trend = makeSvg("svg", { class: `trend trend-${kind}`, viewBox: "0 0 16 14", width: 16, height: 14, "aria-hidden": "true" }, bars);
  const element = make("span", { class: "rate" }, text, trend);
  return {
    element,
    update(rates) {
      const values = WINDOWS.map(([seconds]) => rateOver(rates, seconds)[FIELDS[kind]]);
      const most = Math.max(...values);
      setText(text, rate(values[2]));
      values.forEach((value, index) => {
        const height = most > 0 ? Math.max((value / most) * 14, 1) : 1;
        setAttribute(bars[index], "height", height.toFixed(2));
        setAttribute(bars[index], "y", (14 - height).toFixed(2));
      });
      setAttribute(element, "title", WINDOWS.map(([, name], index) => `${name}: ${rate(values[index])}/s`).join(", "));
    },
  };
}

/** The period to which a row's figures belong, with a link to all periods; hidden without periods. */
export function periodsLink(place) {
  const shown = make("span");
  const all = make("a");
  const element = make("span", { class: "periods quiet" }, shown, ", ", all);
  return {
    element,
    update(name, { periods, current }) {
      element.hidden = periods === null;
      if (periods !== null) {
        setText(all, periods.count === 1 ? "its only period" : `all ${plural(periods.count, "period")}`);
        setAttribute(all, "href", route(place, [], { of: name, descending: true }));
        setText(shown, `period ${periodText(current.starts)}`);
      }
    },
  };
}

/** A text that replaces an empty list, with a command to fill it. */
export function emptyState(title, text, command = null) {
  return make(
    "div",
    { class: "empty" },
    make("p", { class: "empty-title" }, title),
    make("p", {}, text),
    command && make("pre", { tabindex: "0" }, make("code", {}, command)),
  );
}

/** A card with a heading. */
export function card(title, ...children) {
  return make("section", { class: "card", "aria-label": title }, make("h2", {}, title), ...children);
}

/** A list of names and values; `update` takes the values in the same order. */
export function facts(names) {
  const values = names.map(() => make("dd"));
  const element = make(
    "dl",
    { class: "facts" },
    names.map((name, index) => make("div", {}, make("dt", {}, name), values[index])),
  );
  return {
    element,
    update(given) {
      given.forEach((value, index) => {
        if (value instanceof Node) {
          values[index].replaceChildren(value);
        } else {
          setText(values[index], value);
        }
      });
    },
  };
}

/** Return a function that calls `call` a quarter of a second after its own last call. */
export function afterPause(call) {
  let timer = null;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(call, 250);
  };
}
