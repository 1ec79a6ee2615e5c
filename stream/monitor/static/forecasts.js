// Tables of a budget's forecasts and of its spending by analyst and stream.

import { KeyedList, link, make, setText, tableHead } from "./dom.js";
import { amount, capital, count, duration, plural, time } from "./format.js";
import { card, emptyState, stateBadge } from "./parts.js";
import { route } from "./routes.js";

const WINDOWS = { 86400: "last day", 604800: "last 7 days", 2592000: "last 30 days" };
const PARTS = { epsilon: "ε", delta: "δ", rho: "ρ" };

/** Return a forecast as a phrase. */
function describeForecast(forecast, now = Date.now() / 1000) {
  switch (forecast.outcome) {
    case "never":
      return "never at this pace";
    case "gone":
      return `no ${PARTS[forecast.part]} is left`;
    case "too-early":
      return "too early to tell: less than an hour is known";
    case "renews-first":
      return `lasts until it renews, ${time(forecast.at)}`;
    default:
      return `no ${PARTS[forecast.part]} left in ${duration(Math.max(forecast.at - now, 0))}, ${time(forecast.at)}`;
  }
}

function forecastRow() {
  const head = make("th", { scope: "row" });
  const taken = make("td", { "data-label": "Granted minus refunded" });
  const pace = make("td", { "data-label": "At this pace" });
  return {
    element: make("tr", {}, head, taken, pace),
    update(forecast) {
      const window = WINDOWS[forecast.window_seconds] ?? duration(forecast.window_seconds);
      const now = Date.now() / 1000;
      const isShort = forecast.since > now - forecast.window_seconds + 3600;
      setText(head, isShort ? `${window} (since ${time(forecast.since)})` : window);
      setText(taken, isNothing(forecast.taken) ? "nothing" : amount(forecast.taken));
      setText(pace, describeForecast(forecast, now));
      pace.toggleAttribute("data-low", forecast.outcome === "gone" || (forecast.outcome === "runs-out" && forecast.at - now < 14 * 86400));
    },
  };
}

function isNothing(taken) {
  return !taken.epsilon && !taken.delta && !taken.rho;
}

/** Describe the earlier entries of the trail that a chart lacks after a start of the monitor. */
export function unreadNote(unread) {
  return unread ? `; the chart lacks ${plural(unread, "earlier entry", "earlier entries")} of the trail, still being read` : "";
}

/** A card with one forecast for each window. */
export function forecastCard() {
  const body = make("tbody");
  const list = new KeyedList(body, forecastRow);
  const none = make("p", { class: "quiet" }, "Its sources have different accountants, whose amounts do not add up: see each source.");
  const table = make("table", { class: "plain people-table", "aria-label": "How long it lasts" }, tableHead("Over the", "Granted minus refunded", "At this pace"), body);
  const element = card("How long it lasts", make("p", { class: "quiet" }, "An estimate, not a promise: how long the rest lasts if grants continue at the pace of the time before."), table, none);
  return {
    element,
    update(forecasts) {
      table.hidden = !forecasts.length;
      none.hidden = forecasts.length > 0;
      list.show(forecasts, (one) => one.window_seconds);
    },
  };
}

const SHARES = ["granted", "spent", "refunded"];
const SHARE_HEADS = SHARES.map(capital);

function analystRow() {
  const head = make("th", { scope: "row" });
  const source = make("td", { "data-label": "Source" });
  const streams = make("td", { class: "figure", "data-label": "Streams" });
  const cells = SHARE_HEADS.map((name) => make("td", { "data-label": name }));
  return {
    element: make("tr", {}, head, source, streams, cells),
    update(row) {
      setText(head, row.analyst ?? "no analyst");
      setText(source, row.source);
      setText(streams, count(row.streams));
      SHARES.forEach((name, index) => setText(cells[index], amount(row.share[name])));
    },
  };
}

function streamRow() {
  const name = make("a", { class: "name" });
  const state = stateBadge();
  const analyst = make("td", { "data-label": "Analyst" });
  const cells = SHARE_HEADS.map((name) => make("td", { "data-label": name }));
  return {
    element: make("tr", {}, make("th", { scope: "row" }, name, " ", state.element), analyst, cells),
    update(row) {
      setText(name, row.stream);
      name.href = route("streams", [row.stream]);
      state.update(row);
      setText(analyst, row.analyst ?? "no analyst");
      SHARES.forEach((part, index) => setText(cells[index], amount(row.share[part])));
    },
  };
}

/** A card with each analyst's spending and the most expensive streams. */
export function spendingCard() {
  const people = make("tbody");
  const streams = make("tbody");
  const peopleList = new KeyedList(people, analystRow);
  const streamList = new KeyedList(streams, streamRow);
  const note = make("p", { class: "quiet" });
  const none = emptyState("Nothing was granted yet", "Each analyst's part is shown here once a stream is open.");
  const tables = make(
    "div",
    {},
    make("table", { class: "plain people-table", "aria-label": "By analyst" }, tableHead("Analyst", "Source", "Streams", ...SHARE_HEADS), people),
    note,
    make("table", { class: "plain people-table", "aria-label": "By stream" }, tableHead("Stream", "Analyst", ...SHARE_HEADS), streams),
  );
  const element = card("Who has spent what", tables, none);
  return {
    element,
    update(data) {
      none.hidden = data.streams > 0;
      tables.hidden = data.streams === 0;
      const rows = data.analysts.flatMap((one) => one.sources.map((part) => ({ ...part, analyst: one.analyst })));
      peopleList.show(rows, (row) => `${row.analyst ?? ""} ${row.source}`);
      streamList.show(data.costliest, (row) => row.stream);
      setText(note, `The ${plural(data.costliest.length, "stream")} that cost most after refunds, of ${count(data.streams)}:`);
    },
  };
}

/** A line with a budget's guarantee, its renewal and its population. */
export function promiseLine() {
  const text = make("span");
  const people = make("span");
  const element = make("p", { class: "promise-line" }, text, people);
  return {
    element,
    update({ meaning: said, renews_at: renews, population = null }) {
      setText(text, `${capital(said)}.${renews ? ` It renews ${time(renews)}.` : ""}`);
      people.replaceChildren(...(population ? [" Its people: ", link(route("people", [population]), population), ", whose budget is charged as well."] : []));
    },
  };
}
