// Sources with their budgets as burn-down bars.

import { KeyedList, make, setAttribute, setText } from "../dom.js";
import { amount, count, mainAmount, percent, periodText, plural, shareLeft, unitOf } from "../format.js";
import { burnBar, periodsLink, stateBadge } from "../parts.js";
import { route } from "../routes.js";

const PARTS = ["granted", "spent", "refunded", "left"];

function entry(inPeriods) {
  const name = make("a", { class: "name" });
  const state = stateBadge();
  const about = make("span", { class: "quiet" });
  const periods = periodsLink("sources");
  const left = make("span", { class: "share" });
  const bar = burnBar();
  const shared = populationLine();
  const figures = PARTS.map(() => make("dd"));
  const element = make(
    "li",
    { class: "source" },
    make("div", { class: "source-head" }, name, state.element, about, periods.element, left),
    bar.element,
    shared.element,
    make(
      "dl",
      { class: "amounts" },
      PARTS.map((part, index) => make("div", {}, make("dt", {}, part), figures[index])),
    ),
  );
  return {
    element,
    update(line) {
      const row = line.current ?? line;
      setText(name, inPeriods && line.starts ? periodText(line.starts) : line.source);
      setAttribute(name, "href", route("sources", [line.source]));
      state.update(line);
      setText(about, describe(line));
      periods.update(line.source, line);
      const unit = unitOf(row);
      setText(left, shareLeft(row));
      setAttribute(left, "title", amount(row.total));
      setAttribute(left, "data-low", row.left_share < 0.1);
      bar.update(row);
      shared.update(row);
      PARTS.forEach((part, index) => {
        setText(figures[index], mainAmount(row[part], unit, part === "left"));
        setAttribute(figures[index], "title", amount(row[part], part === "left"));
      });
    },
  };
}

/** A line that says what is left of the population's budget, if that is less than what is left of the source's own. */
export function populationLine() {
  const element = make("p", { class: "population-left", hidden: true });
  return {
    element,
    update({ population, population_left_share: share, left_share: own }) {
      element.hidden = share === null || share >= own;
      setText(element, share > 0 ? `${percent(share)} left of the budget of its population ${population}` : `Nothing is left of the budget of its population ${population}: no stream can be opened`);
      setAttribute(element, "data-low", share < 0.1);
    },
  };
}

/** Describe a source in a few words. */
export function describe({ kind, accountant, streams }) {
  const adds = accountant === "zcdp" ? "zCDP" : "pure DP";
  const all = Object.values(streams).reduce((sum, one) => sum + one, 0);
  return `${kind}, ${adds}, ${count(streams.open)} of ${plural(all, "stream")} open`;
}

/** A list of sources; with `inPeriods` all are periods of one source, named by their start. */
export function sourceList({ inPeriods = false } = {}) {
  const element = make("ul", { class: "sources" });
  const list = new KeyedList(element, () => entry(inPeriods));
  return { element, update: (sources) => list.show(sources, (source) => source.source) };
}
