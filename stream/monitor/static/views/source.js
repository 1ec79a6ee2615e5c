// One source: its budget, also over time, its spending and its streams.

import { actionButton } from "../actions.js";
import { send } from "../api.js";
import { Chart } from "../chart.js";
import { make, setText } from "../dom.js";
import { jsonBlock } from "../forms.js";
import { forecastCard, promiseLine, spendingCard, unreadNote } from "../forecasts.js";
import { ago, amount, bytes, duration, mainAmount, number, periodText, plural, shareLeft, time, unitOf } from "../format.js";
import { refreshButton } from "../refresh.js";
import { burnBar, burnLegend, card, emptyState, facts, stallText, stateBadge } from "../parts.js";
import { route } from "../routes.js";
import { may } from "../session.js";
import { openStream } from "./commands.js";
import { describe as describeDeclaration } from "./register.js";
import { describe, populationLine } from "./source_list.js";
import { streamTable } from "./stream_table.js";

const SHOWN = 50;
const PARTS = ["total", "granted", "spent", "refunded", "left"];
const SERIES = [["left", "left", true], ["granted", "granted", false], ["spent", "spent", false], ["refunded", "refunded", false]];

export function sourceView({ names: [name], session }) {
  const state = stateBadge();
  const halt = actionButton("halt_source", () => ({ source: name }), session);
  const refresh = refreshButton(name, session);
  const plan = make("a", { class: "button", href: route("plan", [], { source: name }) }, "Plan a stream…");
  const declared = make("div", { class: "declared" });
  const about = make("p", { class: "quiet" });
  const reason = make("p", { class: "reason" });
  const share = make("p", { class: "share" });
  const bar = burnBar();
  const figures = facts(PARTS);
  const refused = make("p", { class: "reason refused", role: "status", hidden: true });
  const stalled = make("p", { class: "reason", role: "status", hidden: true });
  const period = latestPeriod();
  const feed = feedCard();
  const chart = new Chart({ title: "Budget over time", format: (value) => number(value), stepped: true, height: 220 });
  const promise = promiseLine();
  const forecast = forecastCard();
  const spending = spendingCard();
  const table = streamTable({ withSource: false });
  const none = emptyState("No stream on this source", "Open one:", " ");
  none.hidden = halt.hidden = refresh.hidden = true;
  const burnDown = card("Burn-down", chart.element);
  const shared = populationLine();
  const budget = card("Budget", share, bar.element, shared.element, burnLegend(), figures.element);
  const element = make(
    "div",
    { class: "view" },
    make("div", { class: "head" }, make("h1", { class: "name" }, name), state.element, make("div", { class: "head-actions" }, plan, refresh, halt)),
    about,
    promise.element,
    reason,
    stalled,
    refused,
    period.element,
    feed.element,
    budget,
    burnDown,
    forecast.element,
    spending.element,
    card("Declaration", declared),
    card("Streams", table.element, none, make("p", {}, make("a", { href: route("streams", [], { source: name }) }, "All streams of this source"))),
  );

  let undeclared = false; // whether the declaration could not be read, as while the source is being registered

  function showBudget({ source: row, unread, points, forecasts, feed: fed }) {
    if (undeclared) {
      declare();
    }
    feed.update(fed);
    promise.update(row);
    forecast.update(forecasts);
    forecast.element.hidden = row.period !== null || row.state === "halted"; // each period has its own budget
    state.update(row);
    setText(none.querySelector("code"), openStream(row));
    halt.hidden = plan.hidden = row.state === "halted" || row.period_of !== null; // periods end automatically
    period.update(row);
    budget.hidden = burnDown.hidden = row.current !== null; // a source with periods spends nothing itself
    refresh.hidden = halt.hidden || row.version === null;
    setText(about, `${describe(row)}; neighbors ${row.neighbors === "replace" ? "exchange" : "add or remove"} one person${row.version === null ? "" : `; version ${row.version} of its data`}${row.period === null ? "" : `; ${ofPeriod(row)}`}; last change ${time(row.updated)}${unreadNote(unread)}`);
    setText(reason, row.reason ? `Halted: ${row.reason}` : "");
    reason.hidden = !row.reason;
    setText(share, shareLeft(row));
    share.toggleAttribute("data-low", row.left_share < 0.1);
    bar.update(row);
    shared.update(row);
    figures.update(PARTS.map((part) => amount(row[part], part === "left")));
    const unit = unitOf(row);
    chart.update({
      series: SERIES.map(([part, kind, area]) => ({ name: part, kind, area, points: points.map((point) => [point.time, point[part][unit]]) })),
      limit: { value: row.total[unit], text: `total ${mainAmount(row.total, unit)}` },
      until: Math.max(Date.now() / 1000, row.updated),
    });
  }

  /** Show the refused share of a live topic's events, or nothing; only operators receive it. */
  function showRefused(found) {
    refused.hidden = found === undefined;
    if (found !== undefined) {
      setText(refused, `${found.share} of the ${plural(found.events, "record")} in partitions with refused events, up to the latest refused one, ${ago(found.last)}, were refused${found.sources.length > 1 ? ` by at least one source of its topic (${found.sources.join(", ")}; feeds' logs name it)` : ""}. Most often: ${found.reason}`);
    }
  }

  async function declare() {
    undeclared = false;
    try {
      const { declaration } = await send(`/api/sources/${encodeURIComponent(name)}`, session.token);
      const json = jsonBlock("Definition");
      json.show(declaration.source);
      declared.replaceChildren(...describeDeclaration(declaration), make("details", {}, make("summary", {}, "Definition"), json.element));
    } catch (error) {
      undeclared = true;
      declared.replaceChildren(make("p", { class: "quiet" }, error.message));
    }
  }
  declare();

  return {
    element,
    title: name,
    back: { route: route("sources"), text: "All sources" },
    subject: "budget",
    connections: [{ views: ["overview", "budget", "streams", "spending", ...(may(session, "operator") ? ["refusals"] : [])], query: { source: name, sort: "tops_left", limit: SHOWN } }],
    show(view, data) {
      if (view === "budget") {
        showBudget(data);
      } else if (view === "overview") {
        const found = data.stalled.find((one) => one.source === name);
        stalled.hidden = found === undefined;
        setText(stalled, found === undefined ? "" : stallText(found));
      } else if (view === "spending") {
        spending.update(data);
      } else if (view === "refusals") {
        showRefused(data.items.find((one) => one.sources.includes(name)));
      } else if (view === "streams") {
        table.update(data.items);
        table.element.hidden = data.items.length === 0;
        none.hidden = data.items.length > 0;
      }
    },
    close: () => chart.close(),
  };
}

function ofPeriod({ period, period_of: source, starts }) {
  return source === null ? `each period of ${period} has its own account` : `the account of ${source} for the period of ${period} from ${periodText(starts)} UTC on`;
}

/** A card with the budget of a source's latest period. */
function latestPeriod() {
  const name = make("a", { class: "name" });
  const all = make("a");
  const share = make("p", { class: "share" });
  const bar = burnBar();
  const figures = facts(PARTS);
  const parts = [make("p", {}, name), share, bar.element, burnLegend(), figures.element, make("p", {}, all)];
  const element = card("Latest period");
  element.hidden = true;
  return {
    element,
    update({ source, periods, current }) {
      element.hidden = current === null;
      if (current !== null) {
        if (!parts[0].isConnected) {
          element.append(...parts);
        }
        setText(name, `from ${periodText(current.starts)} UTC on`);
        name.href = route("sources", [current.source]);
        setText(share, shareLeft(current));
        bar.update(current);
        figures.update(PARTS.map((part) => amount(current[part], part === "left")));
        setText(all, `All ${plural(periods.count, "period")}`);
        all.href = route("sources", [], { of: source, descending: true });
      }
    },
  };
}

const CLOCKS = {
  broker: ({ idle }) => `the broker's timestamps, ${idle} later if a partition is silent`,
  marks: () => "watermarks in the topic, which its producer writes",
};

/** A card with the progress of a live topic's feed, without lag and open windows, which are private. */
function feedCard() {
  const figures = facts(["Topic", "Windows close by", "Asked up to", "Last answer", "Processes"]);
  const element = card("Feed");
  element.hidden = true;
  return {
    element,
    update(feed) {
      element.hidden = feed === null;
      if (feed !== null) {
        element.append(figures.element);
        const { topic, clock, asked_at: at, is_asked: isAsked, processes } = feed;
        figures.update([
          topic,
          CLOCKS[clock](feed),
          describeAskedTo(feed),
          at === null ? (isAsked ? "unknown" : "none yet") : `${time(at)}, ${ago(at)}`,
          processes.map(process).join("; ") || "none runs: start one with 'sotto serve feed'",
        ]);
      }
    },
  };
}

export function describeAskedTo({ clock, asked_to: end, is_asked: isAsked }) {
  if (end === null) {
    return isAsked ? "unknown: a stream was extended, or windows were skipped" : "no window yet";
  }
  return `the window that ends ${time(end)}${clock === "broker" ? `, ${ago(end)}` : ""}`;
}

function process({ member, started, memory }) {
  const told = [started === null ? null : `up for ${duration(Math.max(Date.now() / 1000 - started, 0))}`, memory === null ? null : bytes(memory)];
  return [member, ...told.filter(Boolean)].join(", ");
}
