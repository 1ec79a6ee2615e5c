// One population: its budget over time, forecasts, sources and allotments.

import { allotForm, allotmentTable, joinForm } from "../allotments.js";
import { Chart } from "../chart.js";
import { make, setText } from "../dom.js";
import { forecastCard, promiseLine, unreadNote } from "../forecasts.js";
import { amount, mainAmount, number, plural, shareLeft, time, unitOf } from "../format.js";
import { burnBar, burnLegend, card, emptyState, facts, stateBadge } from "../parts.js";
import { route } from "../routes.js";
import { may } from "../session.js";
import { sourceList } from "./source_list.js";

const PARTS = ["total", "granted", "spent", "refunded", "left"];
const SERIES = ["granted", "spent", "refunded"];

export function populationView({ names: [name], session }) {
  const about = make("p", { class: "quiet" });
  const state = stateBadge();
  const reason = make("p", { class: "reason" });
  const promise = promiseLine();
  const share = make("p", { class: "share" });
  const bar = burnBar();
  const figures = facts(PARTS);
  const chart = new Chart({ title: "Granted over time", format: (value) => number(value), stepped: true, height: 220 });
  const forecast = forecastCard();
  const sources = sourceList();
  const none = emptyState("No source has joined", "A source names its population when it is registered, or joins later.");
  const table = allotmentTable();
  const change = (title, form) => make("details", { class: "card" }, make("summary", {}, title), form);
  const element = make(
    "div",
    { class: "view" },
    make("div", { class: "head" }, make("h1", { class: "name" }, name), state.element),
    about,
    reason,
    promise.element,
    card("Budget", share, bar.element, burnLegend(), figures.element),
    card("Over time", chart.element),
    forecast.element,
    card("Sources", sources.element, none),
    card("Allotments", table.element),
    may(session, "operator") && [
      change("Let a source join", joinForm(session, { population: name })),
      change("Allot a part of this budget", allotForm(session, { kind: "population", of: name })),
    ],
  );
  return {
    element,
    title: name,
    back: { route: route("people"), text: "All populations" },
    subject: "population",
    connections: [{ views: ["overview", "population"], query: { population: name } }],
    show(view, data) {
      if (view !== "population") {
        return;
      }
      const { row } = data;
      setText(about, `${plural(row.sources, "source")}, ${plural(row.streams, "stream")}; last change ${time(row.updated)}${unreadNote(data.unread)}`);
      state.update(row);
      setText(reason, row.reason ? `Halted: ${row.reason}` : "");
      reason.hidden = !row.reason;
      promise.update({ meaning: row.meaning, renews_at: row.period?.ends ?? null });
      setText(share, shareLeft(row));
      share.toggleAttribute("data-low", row.left_share < 0.1);
      bar.update(row);
      figures.update(PARTS.map((part) => amount(row[part], part === "left")));
      const unit = unitOf(row);
      chart.update({
        series: SERIES.map((part) => ({ name: part, kind: part, area: part === "granted", points: data.points.map((point) => [point.time, point[part][unit] ?? 0]) })),
        limit: row.renews ? null : { value: row.total[unit], text: `total ${mainAmount(row.total, unit)}` },
        until: Math.max(Date.now() / 1000, row.updated),
      });
      forecast.update(data.forecasts);
      none.hidden = data.sources.length > 0;
      sources.update(data.sources);
      table.update(data.allotments);
    },
    close: () => chart.close(),
  };
}
