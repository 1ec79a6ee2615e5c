// One stream: its error bounds, its use, the times of its charges, and buttons that extend or end it.

import { actionButton, applies } from "../actions.js";
import { Chart, ratesOf } from "../chart.js";
import { make, setText } from "../dom.js";
import { ago, amount, capital, count, countOf, duration, exact, mechanism, percent, periodText, plural, rate, rateOver, time, words } from "../format.js";
import { CHARGED_BY_WINDOW, promisedAnswers, SPECS } from "../mechanisms.js";
import { card, cutoffBar, emptyState, facts, stallText, stateBadge } from "../parts.js";
import { route } from "../routes.js";
import { answerHistory } from "./history.js";
import { promise } from "./stream_table.js";

const WINDOWS = [[60, "last minute"], [600, "last 10 minutes"], [3600, "last hour"]];
const FACTS = ["Source", "Mechanism", "Standing query", "Accuracy promised", "Requested", "Extended by", "Cost", "Spent", "Refunded", "Answered", "Runs dry in", "Opened", "Last answer"];

export function streamView({ names: [name], session }) {
  let source = "";
  let stalls = [];
  let latest = null;
  let price = null;
  const state = stateBadge();
  const subject = () => ({ source, stream: name });
  const kinds = ["extend", "halt", "close"];
  const buttons = kinds.map((kind) => actionButton(kind, subject, session, () => price));
  const asking = make("a", { class: "button", href: route("ask", [], { stream: name }) }, "Ask…");
  const reason = make("p", { class: "reason" });
  const tops = cutoffBar();
  const used = make("span", { class: "quiet" });
  const about = facts(FACTS);
  const home = make("a", { class: "name" });
  const cells = WINDOWS.map(() => [make("td"), make("td")]);
  const heads = ["charged/s", "free/s"].map((text) => make("th", { scope: "col" }, text));
  const timeline = new Chart({ title: "Charged answers so far", format: (value) => count(value), whole: true, stepped: true, height: 200 });
  const answers = new Chart({ title: "Free answers per second", format: (value) => rate(value), height: 150 });
  const command = make("pre", { tabindex: "0" }, make("code"));
  const silent = emptyState("No answer yet", "Ask it something:");
  silent.append(command);
  const waiting = emptyState("No answer yet", "Answered automatically: one question per window. To follow its answers:", `sotto answers --stream ${name}`);
  const expected = make("p");
  waiting.append(expected);
  const charts = make("div", {}, timeline.element, answers.element);
  const definition = make("pre", { tabindex: "0" }, make("code"));
  const constants = make("pre", { tabindex: "0" }, make("code"));
  const place = make("p", { class: "quiet" });
  const period = latestPeriod();
  const model = make("p", { class: "quiet" });
  const history = answerHistory(name, session);
  const glance = make("p", { class: "big" }, used, tops.element);
  const overTime = card("Answers over time", charts, silent, waiting);
  const perSecond = card(
    "Answers per second",
    make(
      "table",
      { class: "plain" },
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Over the"), heads)),
      make("tbody", {}, WINDOWS.map(([, text], index) => make("tr", {}, make("th", { scope: "row" }, text), cells[index]))),
    ),
  );
  const element = make(
    "div",
    { class: "view" },
    make("div", { class: "head" }, make("h1", { class: "name" }, name), state.element, make("div", { class: "head-actions" }, asking, buttons)),
    reason,
    model,
    make(
      "div",
      { class: "columns" },
      card("At a glance", glance, about.element),
      overTime,
      period.element,
    ),
    make(
      "div",
      { class: "columns" },
      perSecond,
      card(
        "Definition",
        make("details", {}, make("summary", {}, "As requested"), definition),
        make("details", {}, make("summary", {}, "Calibration: the public constants of its noise"), constants),
        place,
      ),
    ),
    history.element,
  );
  for (const hidden of [silent, waiting, charts, asking, ...buttons]) {
    hidden.hidden = true;
  }

  function show({ row, source_kind: of, spec, calibration, incarnation, position, timeline: points, standing, first_answer: first, missed_events: missed, windows, period: length, extension_price: each }) {
    source = row.source;
    price = each;
    const stall = stalls.find((one) => one.source === source || source.startsWith(`${one.source}@`)) ?? null;
    state.update(row);
    kinds.forEach((kind, index) => {
      buttons[index].hidden = !applies(kind, row) || (kind === "extend" && (row.cutoff === null || price === null || row.period_of !== null || row.periods !== null));
    });
    asking.hidden = !(row.state === "open" || paysMore(row)) || row.ending !== null || standing !== null;
    setText(reason, describeReason(row));
    reason.hidden = !reason.textContent;
    period.update(row, stall);
    glance.hidden = overTime.hidden = perSecond.hidden = row.current !== null; // a model answers nothing itself
    history.element.hidden = row.current !== null;
    if (row.current === null) {
      history.show(row, spec.standing);
    }
    model.hidden = row.period_of === null;
    if (row.period_of !== null) {
      model.replaceChildren("Stands for ", make("a", { href: route("streams", [row.period_of]) }, row.period_of), ` in the period from ${periodText(row.starts)} UTC on.`);
    }
    tops.update(row);
    const called = words(row.mechanism);
    setText(used, row.cutoff === null ? "Charged " : `${called.used} used `);
    timeline.element.hidden = row.cutoff === null;
    setText(heads[0], `${capital(called.charged)} per second`);
    setText(heads[1], `${capital(called.free)} per second`);
    timeline.rename(`${capital(called.charged)} so far`);
    answers.rename(`${capital(called.free)} per second`);
    home.textContent = row.source;
    home.href = route("sources", [row.source]);
    about.update([
      home,
      `${mechanism(row.mechanism)}${spec.mechanism.threshold === undefined ? "" : `, threshold ${exact(spec.mechanism.threshold)}`}`,
      standing === null ? "none: clients ask it" : `It ${standing}.${missed === null ? "" : ` ${capital(missed)}.`}`,
      `${promise(row)}${row.state === "exhausted" ? describeUsedUp(row) : windows === null ? "" : `; this covers ${count(windows)} ${windows === 1 ? "window" : "windows"} with all groups${length === null ? "" : `, in each period of ${length}`}`}.`,
      amount(row.asked),
      row.added ? plural(row.added, "charged answer") : "nothing",
      amount(row.cost),
      row.current !== null ? "nothing: its periods do" : `${amount(row.spent)}${row.cost.epsilon ? ` (${percent(share(row))} of its cost)` : ""}`,
      amount(row.refunded),
      row.current !== null ? "nothing: its periods are asked" : describeAnswers(row),
      row.current !== null ? "never" : describeExhaustion(row, standing !== null, stall),
      row.opened === null ? "unknown" : time(row.opened),
      describeLastAnswer(row.current ?? row),
    ]);
    WINDOWS.forEach(([seconds], index) => {
      const { above, below } = rateOver(row.rates, seconds);
      setText(cells[index][0], rate(above));
      setText(cells[index][1], rate(below));
    });
    const quiet = row.answered === 0 && row.state === "open";
    silent.hidden = !quiet || standing !== null;
    setText(command.firstChild, `sotto ask ${name} ${example(of, spec.mechanism)}`);
    waiting.hidden = !quiet || standing === null;
    setText(expected, first === null ? "" : `${capital(first)}.`);
    charts.hidden = quiet;
    const until = Math.max(row.state === "open" ? Date.now() / 1000 : 0, row.updated ?? 0);
    timeline.update({
      series: [{ name: called.charged, kind: "charged", area: true, points: points.map((point) => [point.time, point.tops]) }],
      limit: row.cutoff === null ? null : { value: row.cutoff, text: `${count(row.cutoff)} ${row.cutoff === 1 ? "is" : "are"} paid for` },
      until,
    });
    answers.update({
      series: [{ name: called.free, kind: "free", area: true, points: ratesOf(points, (point) => point.answered - point.tops) }],
      limit: null,
      until,
    });
    setText(definition.firstChild, JSON.stringify(spec, null, 2));
    setText(constants.firstChild, JSON.stringify(calibration, null, 2));
    const last = position ? `, last query at ${position.topic}/${position.partition} offset ${count(position.offset)}` : "";
    setText(place, `Incarnation ${incarnation}${last}`);
  }

  return {
    element,
    title: name,
    back: { route: route("streams"), text: "All streams" },
    connections: [{ views: ["overview", "stream"], query: { stream: name } }],
    show(view, data) {
      if (view === "stream") {
        latest = data;
      } else if (view === "overview") {
        stalls = data.stalled;
      }
      if (latest !== null) {
        show(latest);
      }
    },
    close() {
      timeline.close();
      answers.close();
      history.close();
    },
  };
}

/** Return options of `sotto ask` with an example question for a stream. */
export function example(kind, mechanism) {
  const forms = SPECS[mechanism.kind]?.forms ?? [];
  if (kind === "records") {
    return `--category '${mechanism.categories[0].replaceAll("'", "'\\''")}'`;
  }
  if (forms.includes("choice") || (kind === "table" && !forms.includes("count"))) {
    return "--question question.json";
  }
  return kind === "table" ? "--where TRUE" : "--value 12";
}

/** Return why a stream is ending, has ended or does not answer. */
function describeReason({ state, ending, reason, refused, updated }) {
  if (refused !== null) {
    return `Open, and its worker does not answer${updated === null ? "" : ` (${ago(updated)})`}: ${refused}`;
  }
  if (!reason || reason.startsWith(`${state}: `)) {
    return reason ?? "";
  }
  const ended = ending && state === "exhausted" ? `${state} and ${ending}` : state;
  return `${state === "open" ? "Ending" : ended}: ${reason}`;
}

export function describeExhaustion({ state, mechanism, answered, dry_in: left, opened, tops_left: charges }, isStanding, stall) {
  if (state !== "open") {
    return state === "exhausted" ? "it is exhausted" : "it has ended";
  }
  const byWindow = isStanding && CHARGED_BY_WINDOW.includes(mechanism);
  // While feeds run, only some streams of the source may be overdue.
  if (stall !== null && (!stall.feed_runs || (answered && left === null && byWindow))) {
    return `unknown; ${stallText(stall)}`;
  }
  if (left === null && byWindow && charges !== null) {
    return `unknown yet; ${countOf(charges, words(mechanism).charged)} left`;
  }
  if (left === null) {
    return charges === null ? "no end in sight" : "unknown: it takes five charged answers within ten minutes, over at least a minute";
  }
  const since = byWindow ? "of its windows" : Date.now() / 1000 - opened < 600 ? "since its opening" : "of the last ten minutes";
  return `${duration(left)}, at the rate ${since}`;
}

function promisedOf({ mechanism: kind, cutoff, added, expected_queries }) {
  return promisedAnswers(kind, { cutoff: cutoff && cutoff - added, expected_queries });
}

/** Whether the rest of an exhausted stream's grant may pay for a question with a requested error; the ε of such questions add up under zCDP too. */
export function paysMore({ mechanism: kind, state, reason: why, spent, cost }) {
  return kind === "laplace" && state === "exhausted" && !why && spent.epsilon < cost.epsilon;
}

/** Say what the promise of an exhausted stream covers. */
function describeUsedUp(row) {
  const promised = row.mechanism === "pmw" ? row.answered : promisedOf(row);
  const rest = "; the rest of the grant pays only for cheap questions with an alpha";
  if (paysMore(row) && promised > row.answered) {
    return rest;
  }
  const covered = paysMore(row) ? `${rest}; the promise covers` : "; the grant is used up, so the promise covers only";
  if (promisedUses(row) > Math.max(promised, row.answered)) {
    return `${covered} the first answers whose prices add up to ${count(promised)} ordinary answers`;
  }
  const first = promised < row.answered ? `first ${count(promised)} of the ` : "";
  return `${covered} the ${first}${plural(row.answered, "answer")} given so far`;
}

/** The charged answers of a stream in ordinary answers: one with a requested error counts by its price. */
function usesOf(row) {
  return row.cutoff - row.tops_left;
}

/** The answers that a promise counts; with zCDP prices grow faster than the probability of an error. */
function promisedUses(row) {
  return row.mechanism === "laplace" && row.cost.rho === null ? Math.max(row.answered, usesOf(row)) : row.answered;
}

/** Say how many answers a stream has given, of each of its two kinds. */
function describeAnswers(row) {
  const { mechanism: kind, answered, tops } = row;
  const uses = usesOf(row);
  const called = words(kind);
  const promised = promisedOf(row);
  const more = promisedUses(row) > promised && !["randomized_response", "pmw"].includes(kind) ? `; more than the ${plural(promised, "answer")} for which α is promised: each further answer makes a larger error more probable` : "";
  if (row.cutoff === null || kind === "running_count") {
    return `${countOf(answered, row.cutoff === null ? called.free : called.charged)}; one charge pays for all of them${more}`;
  }
  const priced = kind === "laplace" && uses !== tops ? `; by their prices they count as ${plural(uses, "answer")}` : "";
  return `${count(answered)}: ${countOf(tops, called.charged)}, ${countOf(answered - tops, called.free)}${priced}${more}`;
}

function describeLastAnswer({ last_answered: last, answered }) {
  return last === null ? (answered ? "unknown" : "none yet") : `${time(last)}, ${ago(last)}`;
}

/** Return the spent share of a stream's cost, in ρ if the cost has one. */
function share({ spent, cost }) {
  return cost.rho > 0 ? spent.rho / cost.rho : spent.epsilon / cost.epsilon;
}

/** A card with the figures of a model's latest period; a model itself is never asked. */
function latestPeriod() {
  const name = make("a", { class: "name" });
  const state = stateBadge();
  const tops = cutoffBar();
  const used = make("span", { class: "quiet" });
  const figures = facts(["Answered", "Spent", "Runs dry in", "Last answer"]);
  const all = make("a");
  const parts = [make("p", { class: "source-head" }, name, state.element), make("p", { class: "big" }, used, tops.element), figures.element, make("p", {}, all)];
  const element = card("Latest period");
  element.hidden = true;
  return {
    element,
    update({ stream, mechanism: kind, periods, current }, stall) {
      element.hidden = current === null;
      if (current !== null) {
        if (!parts[0].isConnected) {
          element.append(...parts);
        }
        const called = words(kind);
        setText(name, `from ${periodText(current.starts)} UTC on`);
        name.href = route("streams", [current.stream]);
        state.update(current);
        tops.update(current);
        setText(used, `${called.used} used `);
        figures.update([
          describeAnswers(current),
          `${amount(current.spent)} of ${amount(current.cost)}`,
          describeExhaustion(current, true, stall),
          describeLastAnswer(current),
        ]);
        setText(all, `All ${plural(periods.count, "period")}`);
        all.href = route("streams", [], { of: stream, descending: true });
      }
    },
  };
}
