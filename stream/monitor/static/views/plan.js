// Plans a stream: shows its error bound, cost and error curve, and opens it.

import { explain, parameters, send } from "../api.js";
import { confirm, receiptLine } from "../confirm.js";
import { CurveChart } from "../curve_chart.js";
import { link, make, setText } from "../dom.js";
import { flag, given, jsonBlock, labelled, latest, numberInput, offer, requestId, select, textInput, typed } from "../forms.js";
import { amount, bound, capital, count, mechanism as mechanismName, plural } from "../format.js";
import { CHARGED_BY_WINDOW, OPENINGS, promisedAnswers } from "../mechanisms.js";
import { afterPause, card, facts } from "../parts.js";
import { route } from "../routes.js";
import { comparisonCard } from "./comparison.js";
import { mechanismForm } from "./mechanism_form.js";
import { standingForm } from "./standing_form.js";
import { promise } from "./stream_table.js";

const MOST_SOURCES = 500;
const FACTS = ["Cost", "Left of the budget so far", "Accuracy promised", "Charged answers", "Calibration"];
const ONLY_RUNNING = "On a live topic only mechanisms of running counts are compared. They need “In all windows together” in the source's declaration.";
const AGAINST = [["epsilon", "against ε"], ["cutoff", "against charged answers"]];

/** Format the number of windows for which a standing stream's error bound holds. */
function describeWindows({ windows, period }) {
  const eachPeriod = period === null ? "" : `, in each period of ${period}`;
  return windows === null ? "" : `; this covers ${count(windows)} ${windows === 1 ? "window" : "windows"} with all groups${eachPeriod}`;
}

/** Describe the mechanism that `auto` chose, and the others by their expected errors. */
function describeChoice([best, ...others]) {
  const rows = ({ error, kind }) => `${bound(error)} rows${kind === "pmw" ? " on average over example tables" : ""}`;
  const error = (one) => (one.error === null ? "has no expected error" : rows(one));
  const wider = best.kind === "laplace" ? "" : " Counts of many groups together err by more.";
  return `auto takes ${mechanismName(best.kind)}: a count of the workload (by default, of one group of two attributes) is expected to err by ${error(best)}; ${others.map((one) => `${mechanismName(one.kind)} ${error(one)}`).join(", ")}.${wider}`;
}

/** Add a part of a curve to the points so far. */
function addPart(whole, { lines, method, chosen, against, following }) {
  for (const { method: name, points } of lines) {
    const line = whole.lines.find((one) => one.method === name);
    if (line) {
      line.points.push(...points);
    } else {
      whole.lines.push({ method: name, points });
    }
  }
  Object.assign(whole, { chosen, against, method: whole.method ?? method, complete: following === null });
}

export function planView({ query, session }) {
  let declared = null;
  let hasFailed = false; // the chosen source was not read: the next input tries it again
  let sizes = {}; // the number of values of each declared attribute
  const request = requestId();
  let affordable = false;
  let cost = null;
  const planned = afterPause(() => plan());
  const source = select([]);
  const stream = textInput({ maxlength: "128", placeholder: "ward-7/heart-rate" });
  const kind = select([]);
  const epsilon = numberInput({ value: "0.5" });
  const delta = numberInput({ placeholder: "0" });
  const expected = numberInput({ value: "1000" });
  const beta = numberInput({ value: "0.05" });
  const rows = numberInput({ inputmode: "numeric", min: "1", step: "1" });
  const answer = numberInput();
  const calibration = select([["best", "the best there is"], ["textbook", "the textbook's"]]);
  const against = select(AGAINST, "epsilon", { "aria-label": "What the curve varies" });
  const acknowledged = flag("Open it even if its promise is not informative");
  const own = mechanismForm();
  const standing = standingForm();
  const about = facts(FACTS);
  const verdict = make("p", { class: "verdict", role: "status" });
  const problem = make("p", { class: "outcome", role: "status", "data-level": "refused", hidden: true });
  const chart = new CurveChart();
  const curveProblem = make("p", { class: "quiet", role: "status" });
  const curveProgress = make("progress", { "aria-label": "Points of the error curve", max: "1", hidden: true });
  const comparison = comparisonCard(session, (name) => {
    kind.value = name;
    fields();
    changed();
  });
  const json = jsonBlock("Request");
  const openButton = make("button", { type: "submit", class: "solid", disabled: true }, "Open stream…");
  const form = make(
    "form",
    { class: "sheet", novalidate: true, oninput: () => changed() },
    labelled("Source", source),
    labelled("Name of the stream", stream),
    labelled("Mechanism", kind),
    own.element,
    standing.element,
    labelled("ε", epsilon),
    labelled("δ", delta),
    labelled("Expected questions", expected, "for which the promise holds; on a live topic, windows times groups"),
    labelled("β", beta, "probability that any answer is off by more than α"),
    labelled("Rows, about", rows, "your public guess, for warnings and for the choice of auto"),
    labelled("Expected answer, about", answer, "your guess; the plan warns if α is larger"),
    labelled("Calibration", calibration),
    acknowledged.element,
    openButton,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    open();
  });
  source.addEventListener("change", () => choose());
  kind.addEventListener("change", fields);
  against.addEventListener("change", () => plan());

  // The shown plan belongs to the previous input, as does one on its way: neither must be opened.
  function changed() {
    plan.outdate();
    awaitPlan();
    planned();
  }

  function awaitPlan() {
    openButton.disabled = true;
    setText(verdict, `Working out the plan…${cost ? " The figures below are those of the last plan." : ""}`);
    verdict.dataset.level = "waiting";
    showProgress();
  }

  /** Show that a curve is being worked out: the shown one is stale, and `done` points of the next one are known. */
  function showProgress(done = 0, total = 1) {
    chart.element.toggleAttribute("data-stale", done === 0);
    curveProgress.hidden = done === total;
    curveProgress.max = total;
    if (done) {
      curveProgress.value = done;
    } else {
      curveProgress.removeAttribute("value"); // no point yet: the bar moves without an end
    }
    setText(curveProblem, done === total ? "" : `Working out the error curve${done ? `: ${done} of ${total} points` : "…"}`);
  }

  function fields() {
    if (declared) {
      own.show(kind.value, declared);
      standing.show(kind.value, declared);
    }
  }

  // A plan reads no table. The budget service does, and refuses a guess of rows that are public.
  const guessedRows = (isOpening) => (isOpening && declared.neighbors === "replace" && (declared.contribution ?? 1) === 1 ? undefined : typed(rows));

  const spec = (isOpening = false) =>
    given({
      stream: stream.value.trim() || "not-named-yet",
      source: source.value,
      mechanism: { kind: kind.value, ...(kind.value === "auto" ? given({ rows: guessedRows(isOpening) }) : own.value()) },
      standing: standing.value(),
      epsilon: typed(epsilon),
      delta: typed(delta),
      expected_queries: typed(expected),
      beta: typed(beta),
      calibration: calibration.value,
    });

  const knownRows = () => typed(rows) ?? own.value().rows;

  const body = () => {
    const opening = given({ stream: spec(true), informative: acknowledged.control.checked ? undefined : true });
    return { kind: "open", request: request.of(opening), ...opening };
  };

  const plan = latest(async (isLatest) => {
    if (!declared) {
      if (hasFailed) {
        choose();
      }
      return;
    }
    json.show(body());
    awaitPlan();
    const { attributes } = own.value();
    const budget = { epsilon: typed(epsilon), delta: typed(delta), beta: typed(beta), queries: typed(expected), rows: knownRows() };
    comparison.compare(given({ source: source.value, ...budget, attributes: declared.kind === "table" && attributes?.length ? attributes : undefined }), Object.keys(declared.attributes ?? {}).length, declared.kind === "events" && !declared.total ? ONLY_RUNNING : "");
    try {
      const guesses = parameters({ rows: knownRows(), answer: typed(answer) });
      const found = await send(`/api/plan${guesses && `?${guesses}`}`, session.token, { method: "POST", body: spec() });
      if (!isLatest()) {
        return;
      }
      problem.hidden = true;
      show(found);
      await draw(isLatest);
    } catch (error) {
      if (isLatest()) {
        showProblem(error);
      }
    }
  });

  function showProblem(error) {
    problem.hidden = false;
    setText(problem, explain(error.problem ?? { message: error.message }, amount));
    setText(verdict, "");
    cost = null;
    about.update(FACTS.map(() => "–"));
    chart.element.hidden = true;
    showProgress(1, 1);
  }

  /** Draw the curve part by part: a part takes a fraction of a second. */
  async function draw(isLatest) {
    const whole = { lines: [], method: null };
    let start = 0;
    try {
      while (start !== null) {
        const part = await send("/api/curves", session.token, { method: "POST", body: { stream: spec(), against: against.value, start } });
        if (!isLatest()) {
          return;
        }
        addPart(whole, part);
        start = part.following;
        chart.element.hidden = false;
        showProgress(start ?? part.total, part.total);
        chart.update(whole);
      }
    } catch (error) {
      if (isLatest()) {
        chart.element.hidden = true;
        showProgress(1, 1);
        setText(curveProblem, explain(error.problem ?? { message: error.message }, amount));
      }
    }
  }

  function show(found) {
    affordable = found.affordable;
    cost = found.cost;
    const vacuous = found.promises.some((one) => one.warning);
    const useless = found.uninformative !== null;
    about.update([
      amount(found.cost),
      `${amount(found.left, true)}${found.cost.delta && !found.left.delta ? ", δ 0" : ""}${found.left_of ? `, of population '${found.left_of}'` : ""}`,
      make("span", { class: vacuous ? "vacuous-promise" : "" }, `${promise(found)}${describeWindows(found)}.`),
      found.calibration.cutoff ? count(found.calibration.cutoff) : "one charge pays for all",
      found.calibration.method,
    ]);
    const taken = found.compared[0]?.kind ?? kind.value;
    const payer = found.halted ? `The ${found.halted} is halted, so no stream can be opened` : `The budget ${affordable ? "can" : "cannot"} pay for it`;
    const sentences = [`${payer}; α ${bound(found.calibration.alpha)} for ${plural(promisedAnswers(taken, found.calibration), "answer")}${vacuous ? ", which is vacuous: a constant answer would keep it" : ""}.`];
    if (affordable && session.role !== "operator") {
      sentences.push("An analyst's allotments must be able to pay, too: see People.");
    }
    if (found.compared.length) {
      sentences.push(describeChoice(found.compared));
    }
    const { cutoff, expected_queries: asked } = found.calibration;
    if (CHARGED_BY_WINDOW.includes(taken) && cutoff > asked) {
      sentences.push(`It pays for ${count(cutoff)} answers, and ${plural(asked, "question")} ${asked === 1 ? "is" : "are"} expected: with fewer answers to pay for, each has less noise.`);
    }
    const { attributes } = own.value();
    if (attributes?.length) {
      sentences.push(`It covers ${plural(attributes.reduce((cells, name) => cells * sizes[name], 1), "cell")}, of ${attributes.join(", ")}.`);
    }
    if (!useless && declared.kind === "table" && knownRows() === undefined) {
      sentences.push("Whether that is informative depends on the number of rows: give it, about.");
    }
    if (useless) {
      sentences.push(`${capital(found.uninformative)}.`);
    }
    if (found.past_windows !== null) {
      sentences.push(`${capital(found.past_windows)}.`);
    }
    if (!stream.value.trim()) {
      sentences.push("To open it, name the stream.");
    }
    setText(verdict, sentences.join(" "));
    verdict.dataset.level = affordable ? (vacuous || useless ? "vacuous" : "good") : "bad";
    openButton.disabled = !affordable || !stream.value.trim() || (useless && !acknowledged.control.checked);
  }

  const choose = latest(async (isLatest) => {
    declared = null; // until the chosen source is known, nothing is planned
    hasFailed = false;
    plan.outdate();
    try {
      const detail = await send(`/api/sources/${encodeURIComponent(source.value)}`, session.token);
      if (!isLatest()) {
        return;
      }
      declared = detail.declaration.source;
      sizes = Object.fromEntries(detail.declaration.attributes.map(({ name, size }) => [name, size]));
      const fitting = Object.entries(OPENINGS).filter(([, { on }]) => on.includes(declared.kind));
      offer(kind, fitting.map(([name]) => [name, name === "auto" ? "The best for counts (auto)" : mechanismName(name)]), kind.value || query.mechanism);
      fields();
      plan();
    } catch (error) {
      if (isLatest()) {
        hasFailed = true;
        openButton.disabled = true;
        showProblem(error);
      }
    }
  });

  function open() {
    const sent = body();
    confirm({
      session,
      needs: "analyst",
      verb: "Open",
      subject: "stream",
      name: sent.stream.stream,
      effect: `It reserves ${amount(cost)} of the budget left of '${sent.stream.source}' and then answers. The unspent rest is refunded when it is closed.`,
      async perform(token) {
        request.keep();
        const receipt = await send("/api/streams", token, { method: "POST", body: sent });
        const took = receipt.compared?.length ? ` ${describeChoice(receipt.compared)}` : "";
        return `It is open at ${amount(receipt.granted ?? cost)}; its worker follows within moments.${took}\n${receiptLine(receipt)}`;
      },
      onRefused() {
        request.renew();
        json.show(body());
      },
      onDone() {
        request.renew();
        if (openButton.isConnected) { // the user may have gone to another view meanwhile
          location.hash = route("streams", [sent.stream.stream]).slice(1);
        }
      },
    });
  }

  async function begin() {
    try {
      const page = await send(`/api/sources?state=open&limit=${MOST_SOURCES}`, session.token);
      const names = page.items.map((one) => one.source);
      if (query.source && !names.includes(query.source)) {
        names.unshift(query.source);
      }
      offer(source, names.map((name) => [name, name]), query.source ?? "");
      if (names.length) {
        await choose();
      } else {
        problem.hidden = false;
        problem.replaceChildren("There is no open source yet. ", link(route("register"), "Register one"));
      }
    } catch (error) {
      problem.hidden = false;
      setText(problem, error.message);
    }
  }

  begin();
  return {
    element: make(
      "div",
      { class: "view" },
      make("h1", {}, "Plan a stream"),
      make("p", { class: "quiet" }, "Nothing is reserved before it is opened."),
      make(
        "div",
        { class: "columns" },
        card("Stream", form),
        make("div", { class: "stack" }, card("Error bound and cost", problem, verdict, about.element), card("Error curve", against, curveProgress, curveProblem, chart.element), comparison.element, card("Request", json.element)),
      ),
    ),
    title: "Plan a stream",
    connections: [{ views: ["overview"] }],
    show() {},
    close: () => chart.close(),
  };
}
