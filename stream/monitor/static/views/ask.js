// The view that asks questions: a form over the declared domain, or a SELECT; shows answers with ± and cost.

import { explain, send } from "../api.js";
import { refusal, tokenOf, tokenWanted } from "../confirm.js";
import { download, link, make, setText } from "../dom.js";
import { enableAgain, jsonBlock, labelled, latest, select } from "../forms.js";
import { amount, bound, count, mechanism as mechanismName, time } from "../format.js";
import { FORMS, SPECS } from "../mechanisms.js";
import { afterPause, card, emptyState } from "../parts.js";
import { describePrice, describeQuestion, describeStatementPrice } from "../questions.js";
import { route } from "../routes.js";
import { current, may } from "../session.js";
import { questionAnswered, questionPriced, statementAnswered } from "./answered.js";
import { isAbout, questionForm } from "./question_form.js";
import { example, paysMore } from "./stream.js";

const MOST_STREAMS = 500;
const MOST_TABLES = 50;
const MOST_SKIPPED = 9; // streams that the kind of question offers but whose definitions do not fit it
const MOST_SHOWN = 50; // cards
const MOST_KEPT = 1000; // answers to save, which also tell a repeated question
const REFRESH_MS = 5000; // least time between two looks at the stream, which other clients may ask too
const CONFIRMED_SHARE = "10%"; // of the grant; a question with its own error that costs more needs a confirmation
const pendingKey = (name) => `sotto.pending ${name}`; // the place in this tab's storage, which outlasts a reload
const LATE = "No answer yet; is a worker running? Press the button again to wait for the same answer: it is charged once.";

// The questions and answers of a user, which outlast the view.
let visit = null;

/** Return the visit of the session's user: `pending` has the ids of requests without an answer, which a repetition keeps. */
function visitOf({ token, name }) {
  const user = JSON.stringify([token, name]);
  if (visit?.user !== user) {
    visit?.answers.forEach((one) => one.close());
    const answers = [];
    const saveButton = make("button", { type: "button", class: "start", hidden: true, onclick: () => save(answers) }, "Save answers");
    const nothing = emptyState("No answer yet", "Compose a question or write a SELECT. Answers are charged to the stream's grant.");
    visit = { user, answers, pending: new Map(JSON.parse(sessionStorage.getItem(pendingKey(name)) ?? "[]")), nothing, saveButton, shown: make("div", { class: "stack answers", "aria-live": "polite" }) };
  }
  return visit;
}

/** Save answers as a file of one JSON object a line, the oldest first. */
function save(answers) {
  const lines = answers.filter((one) => one.isAnswer).toReversed().map(({ at, request, answer }) => JSON.stringify({ time: at, request, answer }));
  download(new Blob([`${lines.join("\n")}\n`], { type: "application/x-ndjson" }), "answers.jsonl");
}

addEventListener("beforeunload", (event) => visit?.pending.size && event.preventDefault());

export function askView({ query, session }) {
  let question = null;
  let suggested = ""; // the suggested SELECT, until the user edits it
  let looked = Date.now();
  let repeated = null; // the answered request that was refused once as a repetition
  const { answers, pending, nothing, saveButton, shown } = visitOf(session);
  const kind = select([["", "any question"], ...Object.entries(FORMS).filter(([name]) => name !== "names")]);
  const stream = make("select");
  const tables = {}; // the definitions of the streams' tables by name, once a kind of question is chosen
  let offered = []; // the open streams with the kinds of their sources
  const about = make("p", { class: "quiet" });
  const price = make("p", { class: "price" });
  const more = make("p", { class: "quiet", hidden: true });
  const place = make("div", { class: "wide" });
  const json = jsonBlock("Request");
  const request = card("Request of the form", json.element);
  const token = make("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const allowed = may(session, "analyst");
  const outcome = make("p", { class: "outcome", role: "alert", hidden: true });
  const unanswered = make("p", { class: "outcome", role: "status", "data-level": "waiting", hidden: !pending.size }, `Questions without an answer yet: ${count(pending.size)}. Ask the same again to wait for its answer, which is charged once. A stream's page also lists its answers.`);
  const askButton = make("button", { type: "submit", class: "solid", disabled: true }, "Ask");
  const priceButton = make("button", { type: "button", hidden: true, onclick: () => askQuestion(0) }, "Price");
  const sql = make("textarea", { rows: "4", spellcheck: "false", maxlength: "10000" });
  const statementButton = make("button", { type: "submit", class: "solid" }, "Ask");
  const sqlPrice = make("p", { class: "price", role: "status" });
  const build = make("form", { class: "sheet", novalidate: true, oninput: () => preview(), onchange: () => preview() }, place, make("div", { class: "buttons" }, askButton, priceButton));
  const write = make("form", { class: "sheet", novalidate: true, oninput: afterPause(() => priceStatement()) }, make("div", { class: "wide" }, labelled("SELECT", sql, "COUNT, SUM, AVG, shares, MEDIAN, QUANTILE, VARIANCE, STDDEV; FROM a stream, or a source, whose cheapest open stream answers")), make("div", { class: "buttons" }, statementButton));
  const off = emptyState("This monitor does not ask", "Start it with SOTTO_MONITOR_ASKS=true, and let its principal write queries and read answers. Or ask in a terminal:", "sotto ask ward-7 --value 12");
  off.hidden = session.asks;
  build.addEventListener("submit", (event) => {
    event.preventDefault();
    askQuestion();
  });
  write.addEventListener("submit", (event) => {
    event.preventDefault();
    askStatement();
  });
  const choose = latest(chosenStream);
  stream.addEventListener("change", () => choose());
  kind.addEventListener("change", latest(async (isLatest) => {
    await readTables();
    if (isLatest()) {
      offerStreams(stream.value);
      choose(MOST_SKIPPED);
    }
  }));

  const body = () => ({ stream: stream.value, ...question.value() });

  function preview() {
    if (question) {
      json.show({ id: "made when it is sent", ...body() });
    }
  }

  function tell(text, level) {
    outcome.hidden = !text;
    outcome.dataset.level = level;
    setText(outcome, text);
    if (level === "refused") {
      outcome.scrollIntoView({ block: "nearest" });
    }
  }

  /** Ask the question; with a limit of 0 only its price. */
  function askQuestion(limit) {
    const wrong = question.problem();
    if (wrong) {
      tell(wrong, "refused");
      return;
    }
    const title = question.title();
    const asked = body();
    const text = describeQuestion(title, asked);
    if (limit !== undefined) {
      ask("/api/questions", { ...asked, max_price: limit }, priceButton, (answer) => questionPriced(title, answer), text);
    } else if (asked.alpha === undefined || asked.max_price !== undefined) {
      ask("/api/questions", asked, askButton, (answer) => questionAnswered(title, answer), text);
    } else {
      // Without a limit the monitor would set CONFIRMED_SHARE again. Gaussian noise has no price in ε.
      const confirmed = (most) => ask("/api/questions", { ...asked, max_price: most ?? "100%" }, askButton, (answer) => questionAnswered(title, answer), text);
      ask("/api/questions", { ...asked, max_price: CONFIRMED_SHARE }, askButton, (answer) => questionPriced(title, answer, confirmed), text);
    }
  }

  function askStatement() {
    const statement = sql.value.trim();
    ask("/api/statements", { statement }, statementButton, statementAnswered, statement);
  }

  /** Say how many questions the SELECT sends and what they cost, or why it cannot be asked. */
  const priceStatement = latest(async (isLatest) => {
    const statement = sql.value.trim();
    let text = "";
    try {
      text = statement && describeStatementPrice(await send("/api/statements/price", session.token, { method: "POST", body: { statement } }));
    } catch (error) {
      text = explain(error.problem ?? { message: error.message }, amount);
    }
    if (isLatest()) {
      setText(sqlPrice, text);
    }
  });

  async function ask(path, fields, button, show, text) {
    const used = allowed ? session.token : token.value.trim();
    if (!used) {
      tell(tokenWanted("analyst"), "refused");
      token.focus();
      return;
    }
    const wanted = JSON.stringify([path, fields]);
    const earlier = answers.find((one) => one.wanted === wanted && one.isAnswer);
    if (earlier && repeated !== wanted) {
      repeated = wanted;
      tell(`Answered at ${earlier.time}, see ${earlier.element ? "below" : "the stream's page"}. To ask again, and pay again if the stream charges, press the button again.`, "waiting");
      outcome.scrollIntoView({ block: "nearest" });
      return;
    }
    repeated = null;
    const id = pending.get(wanted) ?? crypto.randomUUID();
    pending.set(wanted, id);
    keepPending();
    button.disabled = true;
    tell("Waiting for the answer…", "waiting");
    try {
      const answer = await send(path, used, { method: "POST", body: { id, ...fields } });
      tell("", "");
      if (pending.delete(wanted)) {
        keep({ ...show(answer), wanted, text, request: fields, answer });
      }
      stream.value && updateState();
    } catch (error) {
      if (!error.retriable) {
        pending.delete(wanted);
      }
      tell(error.problem?.status === 504 ? LATE : refusal(error, "analyst"), "refused");
    } finally {
      keepPending();
      unanswered.hidden ||= !pending.size;
      enableAgain(button);
    }
  }

  function keepPending() {
    if (current()?.token === session.token) { // signing out empties the storage
      sessionStorage.setItem(pendingKey(session.name), JSON.stringify([...pending]));
    }
  }

  function keep(answered) {
    answered.at = new Date().toISOString();
    answered.time = time(Date.now() / 1000);
    answered.isAnswer = answered.element.dataset.outcome !== "priced";
    const stream = answered.answer.stream ?? answered.request.stream;
    answered.element.querySelector("h2").after(make("p", { class: "question" }, `${answered.text} · `, stream ? link(route("streams", [stream]), stream) : "", ` · ${answered.time}`));
    answers.unshift(answered);
    shown.prepend(answered.element);
    nothing.hidden = true;
    answered.element.scrollIntoView({ block: "nearest" }); // at once, without motion
    for (const older of answers.slice(MOST_SHOWN).filter(({ element }) => element)) {
      older.close();
      older.element.remove();
      Object.assign(older, { element: null, close() {} });
    }
    answers.splice(0, answers.length, ...answers.filter(({ element, isAnswer }) => element || isAnswer).slice(0, MOST_KEPT));
    saveButton.hidden = !answers.some(({ isAnswer }) => isAnswer);
  }

  /** Say what the next answer costs, and prefill the SELECT if the user has written none. */
  async function showPrice(isLatest) {
    const asked = stream.value;
    const { free, charged, statement } = await send(`/api/streams/${encodeURIComponent(asked)}/asking`, session.token);
    if (!isLatest() || asked !== stream.value) {
      return;
    }
    const row = offered.find((one) => one.stream === asked);
    const said = row && paysMore(row) ? "Only a question with “Error at most” may be answered; it costs what “Price” shows." : row?.state === "open" ? describePrice(free, charged, row.mechanism, question?.takesAlpha) : "";
    setText(price, question ? said : "");
    if (sql.value === suggested && document.activeElement !== sql) { // the user may be about to write
      sql.value = suggested = statement ?? "";
      sql.placeholder = statement === null ? "This stream takes no SELECT; name another one after FROM." : "";
    }
    await priceStatement();
  }

  function describeStream({ row, spec }) {
    const { stream: name, state, reason, alpha } = row;
    const one = Object.assign(offered.find((each) => each.stream === name) ?? {}, row);
    setText(stream.selectedOptions[0], optionText({ ...one, stream: name, mechanism: spec.mechanism.kind, source: spec.source }));
    const rest = paysMore(row) ? " It is exhausted: its grant pays only for cheap questions with a requested error." : ` It is ${state}, and answers nothing${reason && !reason.startsWith(state) ? `: ${reason}` : ""}.`;
    about.replaceChildren(link(route("streams", [name]), name), `: ${mechanismName(spec.mechanism.kind)} on `, link(route("sources", [spec.source]), spec.source), `; α ${bound(alpha)}.`, state === "open" ? "" : rest);
  }

  /** Show the chosen stream's state and price after an answer, which may have been its last. */
  async function updateState() {
    try {
      const detail = await send(`/api/streams/${encodeURIComponent(stream.value)}`, session.token);
      if (detail.row.stream === stream.value) {
        describeStream(detail);
        await showPrice(() => true);
      }
    } catch (error) {
      tell(refusal(error, "analyst"), "refused");
    }
  }

  /** Show the chosen stream, or up to `skips` streams later the first one that answers the kind. */
  async function chosenStream(isLatest, skips = 0) {
    askButton.disabled = true;
    priceButton.hidden = true;
    question = null;
    request.hidden = true;
    place.replaceChildren();
    setText(price, "");
    tell("", "");
    if (!stream.value) {
      about.replaceChildren(kind.value ? "No open stream answers this kind of question. " : "No open stream yet. ", link(route("plan"), "Plan one"));
      return;
    }
    try {
      const detail = await send(`/api/streams/${encodeURIComponent(stream.value)}`, session.token);
      const { declaration } = await send(`/api/sources/${encodeURIComponent(detail.spec.source)}`, session.token);
      if (!isLatest()) {
        return; // the user has chosen another stream meanwhile
      }
      const source = declaration.source;
      const mechanism = detail.spec.mechanism.kind;
      describeStream(detail);
      const reason = source.kind === "events" ? ["No questions needed", "Answered automatically: one question per window. To follow its answers:", `sotto answers --stream ${stream.value}`] : ["Its questions carry private data", "The monitor does not take them; their producer sends them to Kafka:", `sotto ask ${stream.value} ${example(source.kind, detail.spec.mechanism)}`];
      if (source.kind !== "table" || !SPECS[mechanism]?.forms.length) {
        place.replaceChildren(emptyState(...reason));
        await showPrice(isLatest);
        return;
      }
      question = questionForm(detail.spec, source, preview, kind.value);
      const isUnfit = kind.value && !question.answers(kind.value);
      if (isUnfit && skips && stream.selectedIndex + 1 < stream.options.length) {
        stream.selectedIndex += 1;
        return chosenStream(isLatest, skips - 1);
      }
      request.hidden = false;
      place.replaceChildren(question.element);
      askButton.disabled = !session.asks;
      priceButton.hidden = !session.asks || !question.takesAlpha;
      preview();
      if (isUnfit) {
        tell(`${stream.value} does not answer this kind of question: see its definition.`, "waiting");
      }
      await showPrice(isLatest);
    } catch (error) {
      if (isLatest()) {
        tell(refusal(error, "analyst"), "refused");
      }
    }
  }

  async function readTables() {
    const names = new Set(offered.filter((one) => one.about === "table").map((one) => one.source));
    const missing = [...names].filter((name) => !(name in tables));
    for (const name of missing.slice(0, MOST_TABLES)) {
      const { declaration } = await send(`/api/sources/${encodeURIComponent(name)}`, session.token);
      tables[name] = declaration.source;
    }
  }

  /** Offer the streams that answer the chosen kind of question, of all mechanisms; the others only for "any question". */
  function offerStreams(wanted) {
    const has = ({ mechanism, source }) => SPECS[mechanism].forms.includes(kind.value) && (!tables[source] || isAbout(kind.value, tables[source]));
    const answers = (one) => one.about === "table" && Boolean(SPECS[one.mechanism]?.forms.length) && (!kind.value || has(one));
    const option = (one) => make("option", { value: one.stream }, optionText(one));
    const groups = [["Asked here", offered.filter(answers)], ["Asked through Kafka, or by Sotto itself", kind.value ? [] : offered.filter((one) => !answers(one))]];
    stream.replaceChildren(...groups.filter(([, some]) => some.length).map(([label, some]) => make("optgroup", { label }, some.map(option))));
    const found = [...stream.options].some((one) => one.value === wanted);
    stream.value = found ? wanted : (stream.options[0]?.value ?? "");
  }

  async function begin() {
    statementButton.disabled = !session.asks;
    try {
      const [page, sources] = await Promise.all([
        send(`/api/streams?state=open,exhausted&limit=${MOST_STREAMS}`, session.token),
        send(`/api/sources?limit=${MOST_STREAMS}`, session.token),
      ]);
      more.hidden = page.matching <= page.items.length;
      setText(more, `The first ${count(page.items.length)} of ${count(page.matching)} open and exhausted streams; ask any other from its own page.`);
      const kinds = Object.fromEntries(sources.items.map((one) => [one.source, one.kind]));
      // A source beyond the listed ones may be a table: its form tells when it is chosen.
      offered = page.items.map((one) => ({ ...one, about: kinds[one.source] ?? "table" }));
      if (query.stream && !offered.some((one) => one.stream === query.stream)) {
        const { row, source_kind: about } = await send(`/api/streams/${encodeURIComponent(query.stream)}`, session.token);
        offered.unshift({ ...row, about });
      }
      offerStreams(query.stream ?? "");
      await choose();
    } catch (error) {
      tell(refusal(error, "analyst"), "refused");
    }
  }

  begin();
  return {
    element: make(
      "div",
      { class: "view" },
      make("h1", {}, "Ask"),
      off,
      make(
        "div",
        { class: "columns" },
        make(
          "div",
          { class: "stack" },
          card("Question", labelled("Kind of question", kind), labelled("Stream", stream), more, about, build, price, !allowed && labelled(tokenOf("analyst"), token, "used for these questions, not kept")),
          card("SQL", write, sqlPrice),
          request,
        ),
        make("div", { class: "stack" }, outcome, unanswered, nothing, saveButton, shown),
      ),
    ),
    title: "Ask",
    connections: [{ views: ["overview"] }],
    show() {
      if (question && Date.now() - looked > REFRESH_MS) {
        looked = Date.now();
        updateState();
      }
    },
    close() {},
  };
}

const optionText = ({ stream, mechanism, source, state }) => `${stream} · ${mechanismName(mechanism)} on ${source}${state === "open" ? "" : `, ${state}`}`;
