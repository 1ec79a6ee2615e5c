// Streams as a table, which turns into cards on a narrow screen.

import { KeyedList, make, setAttribute, setText } from "../dom.js";
import { ago, bound, count, duration, mechanism, number, periodText, words } from "../format.js";
import { cutoffBar, periodsLink, rateCell, stateBadge } from "../parts.js";
import { route } from "../routes.js";

// Each column's key, heading, sort field, and label on a narrow screen.
const COLUMNS = [
  ["stream", "Stream", "stream"],
  ["state", "State", "state"],
  ["mechanism", "Mechanism", "mechanism"],
  ["tops", "Charged", "tops_left", "charged"],
  ["above", "Charged/s", "above_rate", "charged/s"],
  ["below", "Other/s", "below_rate", "other/s"],
  ["answered", "Answered", "answered", "answered"],
  ["alpha", "Accuracy α", "alpha", "α"],
  ["dry", "Runs dry in", "dry_in", "dry in"],
];

/** The rule by which a rate of charges is known. */
const RATE_RULE = "At the rate of the last ten minutes, if at least five answers were charged in them, over at least a minute; else unknown. If Sotto asks by the broker's clock and each window is charged, the rate is known.";

function row(withSource, inPeriods) {
  const name = make("a", { class: "name" });
  const source = make("a", { class: "quiet name" });
  const periods = periodsLink("streams");
  const state = stateBadge();
  const kind = make("span");
  const tops = cutoffBar();
  const above = rateCell("charged");
  const below = rateCell("free");
  const answered = make("span", { class: "figure" });
  const alpha = make("span", { class: "figure" });
  const dry = make("span", { class: "figure" });
  const contents = {
    stream: [name, withSource && !inPeriods && source, periods.element],
    state: [state.element],
    mechanism: [kind],
    tops: [tops.element],
    above: [above.element],
    below: [below.element],
    answered: [answered],
    alpha: [alpha],
    dry: [dry],
  };
  const element = make(
    "tr",
    {},
    COLUMNS.map(([key, , , short]) =>
      key === "stream"
        ? make("th", { scope: "row", class: "cell-stream" }, contents[key])
        : make("td", { class: `cell-${key}`, "data-short": short }, contents[key]),
    ),
  );
  return {
    element,
    update(line) {
      // A model is not asked: its figures are those of its latest period.
      const stream = line.current ?? line;
      setText(name, inPeriods && line.starts ? periodText(line.starts) : line.stream);
      setAttribute(name, "href", route("streams", [line.stream]));
      setText(source, line.source);
      setAttribute(source, "href", route("sources", [line.source]));
      periods.update(line.stream, line);
      state.update(line.state === "open" && line.ending === null ? stream : line);
      setAttribute(state.element, "title", stream.refused ?? stream.reason);
      setText(kind, mechanism(stream.mechanism));
      tops.update(stream);
      setAttribute(tops.element, "title", stream.cutoff === null ? "one charge pays for all answers" : `${words(stream.mechanism).used} used of those that its grant pays for`);
      above.update(stream.rates);
      below.update(stream.rates);
      setText(answered, count(stream.answered));
      setAttribute(answered, "title", stream.last_answered === null ? null : `last ${ago(stream.last_answered)}`);
      setText(alpha, `${bound(stream.alpha)}${stream.promises.some((one) => one.warning) ? " (vacuous)" : ""}`);
      setAttribute(alpha, "title", promise(stream));
      setText(dry, stream.dry_in === null ? "–" : duration(stream.dry_in));
      setAttribute(dry, "title", RATE_RULE);
      setAttribute(element, "data-state", stream.state);
    },
  };
}

/** Return a stream's error bounds as sentences, from the API's parts. */
export function promise({ promises }) {
  return promises
    .map(({ before, alpha, after, over, probability, remark, warning }) =>
      [
        `${before}${bound(alpha)}${after} with probability ${number(probability)} ${over}`,
        remark,
        warning,
      ]
        .filter(Boolean)
        .join("; "),
    )
    .join(". ");
}

/**
 * A table of streams; with `inPeriods` its rows are one model's periods, named by their start. With `onSort(sort)` its headings
 * are buttons; `order({ sort, descending })` marks the sorted column.
 */
export function streamTable({ withSource = true, inPeriods = false, onSort = null, label = "Streams" } = {}) {
  const heads = COLUMNS.map(([key, text, sort]) =>
    make(
      "th",
      { scope: "col", class: `cell-${key}` },
      onSort ? make("button", { type: "button", class: "sort", "data-sort": sort, onclick: () => onSort(sort) }, text) : text,
    ),
  );
  const body = make("tbody");
  const list = new KeyedList(body, () => row(withSource, inPeriods));
  const element = make(
    "div",
    { class: "table-frame" },
    make("table", { class: "streams", "aria-label": label }, make("thead", {}, make("tr", {}, heads)), body),
  );
  return {
    element,
    update: (streams) => list.show(streams, (stream) => stream.stream),
    order({ sort, descending }) {
      heads.forEach((head, index) => {
        const chosen = COLUMNS[index][2] === sort;
        setAttribute(head, "aria-sort", chosen ? (descending ? "descending" : "ascending") : null);
      });
    },
  };
}

/** The sort fields of streams with their labels. */
export const sortings = [...COLUMNS.map(([, text, sort]) => [sort, text]), ["source", "Source"], ["updated", "Last change"]];
