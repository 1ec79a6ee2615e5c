// Firing and latest alerts, of all sources or of one.

import { KeyedList, make, setAttribute, setText, tableHead } from "../dom.js";
import { ago, count, exact, plural, time, windowText, within } from "../format.js";
import { afterPause, card, emptyState, stallText, stateBadge } from "../parts.js";
import { route } from "../routes.js";
import { choice, searchField } from "./filters.js";

const LIMIT = 100;
const FIRING = ["Stream", "Group", "Firing since", "Latest window (UTC)", "Estimate or threshold", "Alerts"];
const HISTORY = ["Time", "Stream", "Group", "Window (UTC)", "Estimate or threshold"];
const SHOW_ALERTS = "SOTTO_MONITOR_ALERTS=true sotto serve monitor";

const groupText = (group) => Object.entries(group).map(([name, value]) => `${name} ${value}`).join(", ");
/** The stream's threshold; a question of a client may have had its own. */
const thresholdText = ({ threshold, window }) => (threshold === null ? "" : `threshold ${exact(threshold)}${window ? "" : " or the question's own"}`);
const estimateText = (row) => [row.estimate === null ? "" : within(row.estimate, row.alpha), thresholdText(row)].filter(Boolean).join("; ");
const keyOf = ({ stream, group }) => JSON.stringify([stream, group]);

/** Fill a cell; a narrow screen hides it if it is empty. */
function fill(cell, content) {
  setText(cell, content || "–");
  setAttribute(cell, "data-empty", content ? null : "true");
}

function streamCell() {
  const name = make("a");
  const source = make("span", { class: "quiet" });
  const element = make("td", { class: "cell-stream", "data-label": "Stream" }, name, source);
  return {
    element,
    update(row) {
      setText(name, row.stream);
      setAttribute(name, "href", route("streams", [row.stream]));
      setText(source, [row.source, row.condition, row.counted, ...row.warnings].filter(Boolean).join(" · "));
    },
  };
}

function cells(heads) {
  return heads.map((head) => make("td", { "data-label": head }));
}

function firingRow() {
  const stream = streamCell();
  const [group, since, window, estimate, alerts] = cells(FIRING.slice(1));
  const when = make("span", { class: "whole" });
  const passed = make("span", { class: "quiet" });
  since.append(when, passed);
  const badge = stateBadge();
  const figure = make("span");
  alerts.append(figure, badge.element);
  return {
    element: make("tr", {}, stream.element, group, since, window, estimate, alerts),
    update({ latest, since: began, alerts: run, state }) {
      stream.update(latest);
      fill(group, groupText(latest.group));
      setText(when, time(began));
      setText(passed, ago(began));
      fill(window, windowText(latest.window));
      fill(estimate, estimateText(latest));
      setText(figure, `${count(run)} `);
      // Until an exhausted stream is extended, no further answer resolves its alert.
      badge.element.hidden = state === null || state === "open";
      if (state !== null) {
        badge.update({ state });
      }
    },
  };
}

function historyRow() {
  const [when, , group, window, estimate] = cells(HISTORY);
  const stream = streamCell();
  return {
    element: make("tr", {}, when, stream.element, group, window, estimate),
    update(row) {
      setText(when, time(row.time));
      stream.update(row);
      fill(group, groupText(row.group));
      fill(window, windowText(row.window));
      fill(estimate, estimateText(row));
    },
  };
}

function stalledLine() {
  const element = make("a", { class: "reason" });
  return {
    element: make("p", {}, element),
    update(row) {
      setText(element, `${row.source}: ${stallText(row)}`);
      setAttribute(element, "href", route("sources", [row.source]));
    },
  };
}

function table(label, heads, body) {
  return make("div", { class: "table-frame" }, make("table", { class: "plain people-table alerts", "aria-label": label }, tableHead(...heads), body));
}

export function alertsView({ query, remember }) {
  const chosen = { search: query.search ?? "", source: query.source ?? "" };
  const connections = () => [{ views: ["overview", "alerts"], query: { ...chosen, limit: LIMIT } }];
  const change = (changes) => {
    Object.assign(chosen, changes);
    remember({ ...chosen }, connections());
  };
  const search = searchField("Search streams and groups", chosen.search, afterPause(() => change({ search: search.input.value })));
  const source = choice("Source", [["", "any source"], ...(chosen.source ? [[chosen.source, chosen.source]] : [])], chosen.source, (value) => change({ source: value }));
  const select = source.querySelector("select");
  const firing = make("tbody");
  const history = make("tbody");
  const firingList = new KeyedList(firing, firingRow);
  const historyList = new KeyedList(history, historyRow);
  const total = make("span", { class: "quiet" });
  const quiet = emptyState("Nothing is firing", "Of every open stream and group, the latest answer in the last seven days was not above its threshold.");
  const unmatched = emptyState("No firing alert matches", "Shorten the search text, or choose any source.");
  const none = emptyState("No alert yet", "Alerts are answers “above” of streams of above_threshold and numeric_sparse.");
  const off = emptyState("This monitor shows no alerts", "It is not configured to read answers. To enable alerts, also let its principal read them:", SHOW_ALERTS);
  const matching = make("p", { class: "quiet", role: "status" });
  const stalled = make("div", { role: "status", hidden: true });
  const stalledList = new KeyedList(stalled, stalledLine);
  const firingTable = table("Firing", FIRING, firing);
  const historyTable = table("History", HISTORY, history);
  const filters = make("div", { class: "filters", role: "search" }, search.element, source);
  const now = card("Firing", stalled, quiet, unmatched, firingTable);
  const before = card("History", matching, none, historyTable);
  let firings = null; // unknown before all answers are read
  off.hidden = quiet.hidden = unmatched.hidden = none.hidden = true;
  firingTable.hidden = historyTable.hidden = true;

  function offer(sources) {
    for (const one of sources) {
      const text = one.firing ? `${one.source} (${count(one.firing)} firing)` : one.source;
      const option = [...select.options].find((known) => known.value === one.source);
      if (option) {
        setText(option, text);
      } else {
        select.append(make("option", { value: one.source }, text));
      }
    }
  }

  /** Nothing is firing, unless nobody asks. */
  function showQuiet() {
    quiet.hidden = firings !== 0 || !stalled.hidden;
  }

  return {
    element: make("div", { class: "view" }, make("h1", {}, "Alerts ", total), off, filters, now, before),
    title: "Alerts",
    connections: connections(),
    show(name, data) {
      if (name === "overview") {
        stalledList.show(data.stalled, (one) => one.source);
        stalled.hidden = !data.stalled.length;
        showQuiet();
      }
      if (name !== "alerts") {
        return;
      }
      off.hidden = data.shown;
      filters.hidden = now.hidden = before.hidden = !data.shown;
      setText(total, data.shown ? `${count(data.firing_total)} firing${data.exhausted_total ? `; ${count(data.exhausted_total)} more whose streams are exhausted` : ""}` : "");
      offer(data.sources);
      firingList.show(data.firing, (row) => keyOf(row.latest));
      firingTable.hidden = !data.firing.length;
      firings = data.complete ? data.firing_total + data.exhausted_total : null;
      unmatched.hidden = data.firing.length > 0 || !firings;
      showQuiet();
      historyList.show(data.recent, (row) => `${keyOf(row)} ${row.time} ${row.window?.start}`);
      historyTable.hidden = !data.recent.length;
      none.hidden = data.total > 0 || !data.complete;
      const rest = data.complete ? "" : "; earlier ones are still being read";
      setText(matching, data.total ? `${plural(data.recent.length, "alert")} shown of the ${count(data.matching)} that match${rest}` : rest.slice(2));
    },
    close() {},
  };
}
