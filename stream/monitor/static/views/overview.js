// A summary of the installation.

import { Chart, ratesOf } from "../chart.js";
import { make, setAttribute, setText } from "../dom.js";
import { count, lag, plural, rate, rateOver, time } from "../format.js";
import { burnLegend, card, emptyState, stallText } from "../parts.js";
import { route } from "../routes.js";
import { ADD_SOURCE, openStream } from "./commands.js";
import { sourceList } from "./source_list.js";
import { streamTable } from "./stream_table.js";

const LISTED = 6;

function tile(title, address, hint) {
  const figure = make("span", { class: "tile-figure" });
  const note = make("span", { class: "tile-note" });
  const element = make("a", { class: "tile", href: address, title: hint }, make("span", { class: "tile-title" }, title), figure, note);
  return {
    element,
    update(text, detail, warning = false) {
      setText(figure, text);
      setText(note, detail);
      setAttribute(element, "data-warning", warning);
    },
  };
}

function inEachState(streams) {
  const others = ["exhausted", "halted", "closed"].filter((state) => streams[state]);
  return others.map((state) => `${count(streams[state])} ${state}`).join(", ") || "none ended";
}

export function overviewView() {
  const tiles = {
    streams: tile("Open streams", route("streams", [], { state: "open" })),
    dry: tile("Nearly dry", route("streams", [], { state: "open", sort: "tops_left" })),
    above: tile("Charged per second", route("streams", [], { sort: "above_rate", descending: true })),
    below: tile("Other answers per second", route("streams", [], { sort: "below_rate", descending: true })),
    lag: tile("Waiting queries", route("workers"), "Counted in offsets: between questions, the ends of feeds' transactions count as well"),
    rejected: tile("Rejected questions", route("rejected")),
    stalled: tile("Live topics not asked", route("alerts")),
  };
  const above = new Chart({ title: "Charged answers per second", format: (value) => rate(value), height: 190 });
  const below = new Chart({ title: "Other answers per second", format: (value) => rate(value), height: 190 });
  const noBudget = make("p", { class: "reason", role: "status", hidden: true }, "No budget service runs: until one does, no source is registered, no stream is opened, extended or closed, and no source's 'spent' grows. Start one with 'sotto serve budget'.");
  const notReady = make("p", { class: "reason", role: "status", hidden: true });
  const since = make("p", { class: "quiet", hidden: true });
  const sources = sourceList();
  const noSource = emptyState("No source yet", "A source is data about people with a privacy budget. Register the first one:", ADD_SOURCE);
  const streams = streamTable({ label: "Open streams that run dry first" });
  const noStream = emptyState("No open stream", "A stream answers questions about a source at a privacy cost. Open one:", openStream());
  const element = make(
    "div",
    { class: "view" },
    make("h1", {}, "Overview"),
    noBudget,
    notReady,
    make("div", { class: "tiles" }, Object.values(tiles).map((one) => one.element)),
    make(
      "div",
      { class: "columns" },
      card("Budgets, least left first", burnLegend(), sources.element, noSource, make("p", {}, make("a", { href: route("sources") }, "All sources"))),
      card("Answers in the last hour", since, above.element, below.element),
    ),
    card("Open streams that run dry first", streams.element, noStream, make("p", {}, make("a", { href: route("streams") }, "All streams"))),
  );
  tiles.stalled.element.classList.add("wide");
  noSource.hidden = noStream.hidden = tiles.stalled.element.hidden = true;

  function showOverview(overview) {
    const { above: tops, below: bottoms } = rateOver(overview.rates, 60);
    const unclear = overview.hidden_lag ? "; unclear after a halted question" : "";
    tiles.streams.update(count(overview.streams.open), inEachState(overview.streams));
    tiles.dry.update(count(overview.nearly_dry), "at most a tenth of their answers left", overview.nearly_dry > 0);
    tiles.above.update(rate(tops), `${count(overview.tops)} in all; a stream's first answer may spend ε as well`);
    tiles.below.update(rate(bottoms), `${count(overview.answered - overview.tops)} in all`);
    tiles.lag.update(overview.lag === null ? "–" : lag(overview), plural(overview.workers, "worker") + unclear, overview.workers === 0);
    tiles.rejected.update(count(overview.rejected), overview.rejected ? "see why" : "not counting price and busy", overview.rejected > 0);
    tiles.stalled.element.hidden = !overview.stalled.length;
    tiles.stalled.update(count(overview.stalled.length), overview.stalled.map((one) => `${one.source}: ${stallText(one)}`).join("; "), true);
    noBudget.hidden = overview.budget_runs;
    notReady.hidden = !overview.not_ready.length;
    setText(notReady, `Not ready: ${overview.not_ready.join(", ")}; the page Workers has the reasons.`);
    const history = overview.history;
    since.hidden = !history.length || history[0].time < overview.time - 3540;
    setText(since, since.hidden ? "" : `Only since ${time(history[0].time)}, when this monitor started`);
    const shown = (kind, name, value) => ({
      series: [{ name, kind, area: true, points: ratesOf(history, value) }],
      limit: null,
      until: overview.time,
    });
    above.update(shown("charged", "charged per second", (point) => point.tops));
    below.update(shown("free", "other answers per second", (point) => point.answered - point.tops));
  }

  return {
    element,
    title: "Overview",
    connections: [
      { views: ["overview", "sources"], query: { sort: "left_share", limit: LISTED } },
      { views: ["streams"], query: { sort: "dry_in", state: "open", limit: LISTED } },
    ],
    show(name, data) {
      if (name === "overview") {
        showOverview(data);
      } else if (name === "sources") {
        sources.update(data.items);
        noSource.hidden = data.total > 0;
      } else if (name === "streams") {
        streams.update(data.items);
        streams.element.hidden = data.items.length === 0;
        noStream.hidden = data.items.length > 0;
      }
    },
    close() {
      above.close();
      below.close();
    },
  };
}

