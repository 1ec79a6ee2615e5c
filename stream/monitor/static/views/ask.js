// The view that asks questions: a form over the declared domain, or a SELECT; shows answers with ± and cost.

import { send } from "../api.js";
import { refusal, tokenOf, tokenWanted } from "../confirm.js";
import { link, make, setText } from "../dom.js";
import { jsonBlock, labelled, latest, offer, select } from "../forms.js";
import { bound, count, mechanism as called, time } from "../format.js";
import { SPECS } from "../mechanisms.js";
import { card, emptyState } from "../parts.js";
import { describeQuestion } from "../questions.js";
import { route } from "../routes.js";
import { may } from "../session.js";
import { questionAnswered, questionPriced, statementAnswered } from "./answered.js";
import { questionForm } from "./question_form.js";

const MOST_STREAMS = 500;
const KEPT = 50;
const DEAR = "10%"; // above this part of the grant a question with its own error is asked only after a confirmation

export function askView({ query, session }) {
  let question = null;
  let suggested = ""; // the suggested SELECT, until the user edits it
  let pending = null; // the request without an answer; a repetition keeps its id
  let repeated = null; // the answered request that was refused once as a repetition
  const answers = [];
  const stream = select([]);
  const about = make("p", { class: "quiet" });
  const more = make("p", { class: "quiet", hidden: true });
  const place = make("div", { class: "wide" });
  const json = jsonBlock("Request");
  const token = make("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const allowed = may(session, "analyst");
  const outcome = make("p", { class: "outcome", role: "alert", hidden: true });
  const act = make("button", { type: "submit", class: "solid", disabled: true }, "Ask");
  const actPrice = make("button", { type: "button", hidden: true, onclick: () => askQuestion(0) }, "Price");
  const sql = make("textarea", { rows: "4", spellcheck: "false", maxlength: "10000" });
  const actSql = make("button", { type: "submit", class: "solid" }, "Ask");
  const actSave = make("button", { type: "button", class: "start", hidden: true, onclick: save }, "Save answers");
  const shown = make("div", { class: "stack answers", "aria-live": "polite" });
  const nothing = emptyState("No answer yet", "Compose a question or write a SELECT. Answers are charged to the stream's grant.");
  const build = make("form", { class: "sheet", novalidate: true, oninput: () => preview(), onchange: () => preview() }, place, make("div", { class: "buttons" }, act, actPrice));
  const write = make("form", { class: "sheet", novalidate: true }, make("div", { class: "wide" }, labelled("SELECT", sql, "COUNT, SUM, AVG, shares; FROM a stream, or a source, whose cheapest open stream answers")), actSql);
  const off = emptyState("This monitor does not ask", "It is started with the setting SOTTO_MONITOR_ASKS=true, and its principal then writes queries and reads answers. In a terminal:", "sotto ask ward-7 --value 12");
  off.hidden = session.asks;
  build.addEventListener("submit", (event) => {
    event.preventDefault();
    askQuestion();
  });
  write.addEventListener("submit", (event) => {
    event.preventDefault();
    const statement = sql.value.trim();
    ask("/api/statements", { statement }, actSql, (answer) => statementAnswered(answer), statement);
  });
  const choose = latest(chosenStream);
  stream.addEventListener("change", () => choose());

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
      ask("/api/questions", { ...asked, max_price: limit }, actPrice, (answer) => questionPriced(title, answer), text);
    } else if (asked.alpha === undefined || asked.max_price !== undefined) {
      ask("/api/questions", asked, act, (answer) => questionAnswered(title, answer), text);
    } else {
      const confirmed = () => ask("/api/questions", asked, act, (answer) => questionAnswered(title, answer), text);
      ask("/api/questions", { ...asked, max_price: DEAR }, act, (answer) => questionPriced(title, answer, confirmed), text);
    }
  }

  async function ask(path, fields, button, made, text) {
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
      earlier.element.scrollIntoView({ block: "nearest" });
      tell(`Answered at ${earlier.time}, see below. To ask again, and pay again if the stream charges, press the button again.`, "waiting");
      return;
    }
    repeated = null;
    if (pending?.wanted !== wanted) {
      pending = { wanted, id: crypto.randomUUID() };
    }
    button.disabled = true;
    tell("Waiting for the answer…", "waiting");
    try {
      const answer = await send(path, used, { method: "POST", body: { id: pending.id, ...fields } });
      pending = null;
      tell("", "");
      keep({ ...made(answer), wanted, text, request: fields, answer });
    } catch (error) {
      if (!error.retriable) {
        pending = null;
      }
      tell(refusal(error, "analyst"), "refused");
    } finally {
      button.disabled = false;
    }
  }

  function keep(answered) {
    answered.time = time(Date.now() / 1000);
    answered.isAnswer = answered.element.dataset.outcome !== "priced";
    const stream = answered.answer.stream ?? answered.request.stream;
    answered.element.querySelector("h2").after(make("p", { class: "question" }, `${answered.text} · `, stream ? link(route("streams", [stream]), stream) : "", ` · ${answered.time}`));
    answers.unshift(answered);
    shown.prepend(answered.element);
    nothing.hidden = true;
    actSave.hidden = false;
    while (answers.length > KEPT) {
      const oldest = answers.pop();
      oldest.close();
      oldest.element.remove();
    }
  }

  /** Save the answers of this page as a file of one JSON object a line, the oldest first. */
  function save() {
    const lines = answers.filter((one) => one.isAnswer).toReversed().map(({ time, request, answer }) => JSON.stringify({ time, request, answer }));
    const address = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "application/x-ndjson" }));
    make("a", { href: address, download: "answers.jsonl" }).click();
    URL.revokeObjectURL(address);
  }

  async function chosenStream(isLatest) {
    act.disabled = true;
    actPrice.hidden = true;
    question = null;
    place.replaceChildren();
    tell("", "");
    try {
      const detail = await send(`/api/streams/${encodeURIComponent(stream.value)}`, session.token);
      const { declaration } = await send(`/api/sources/${encodeURIComponent(detail.spec.source)}`, session.token);
      if (!isLatest()) {
        return; // the user has chosen another stream meanwhile
      }
      const source = declaration.source;
      const kind = detail.spec.mechanism.kind;
      const { state, reason } = detail.row;
      const rest = state === "exhausted" && !reason ? " It is exhausted: its grant pays for cheap questions with an error alone." : ` It is ${state}, and answers nothing${reason && !reason.startsWith(state) ? `: ${reason}` : ""}.`;
      about.replaceChildren(link(route("streams", [stream.value]), stream.value), `: ${called(kind)} on `, link(route("sources", [source.source]), source.source), `; α ${bound(detail.row.alpha)}.`, state === "open" ? "" : rest);
      if (source.kind === "events") {
        place.replaceChildren(emptyState("No questions needed", "Answered automatically: one question per window. To follow its answers:", `sotto answers --stream ${stream.value}`));
        return;
      }
      if (source.kind !== "table" || !SPECS[kind]?.forms.length) {
        place.replaceChildren(emptyState("Its questions carry private data", "They do not come through the monitor. A producer sends them to Kafka:", `sotto ask ${stream.value} --value 12`));
        return;
      }
      question = questionForm(detail.spec, source, preview);
      place.replaceChildren(question.element);
      if (sql.value === suggested) {
        sql.value = suggested = `SELECT COUNT(*) FROM "${stream.value.replaceAll('"', '""')}"`;
      }
      act.disabled = !session.asks;
      actPrice.hidden = !session.asks || !question.takesAlpha;
      preview();
    } catch (error) {
      if (isLatest()) {
        tell(refusal(error, "analyst"), "refused");
      }
    }
  }

  async function begin() {
    actSql.disabled = !session.asks;
    try {
      const page = await send(`/api/streams?state=open&limit=${MOST_STREAMS}`, session.token);
      more.hidden = page.matching <= page.items.length;
      setText(more, `The first ${count(page.items.length)} of ${count(page.matching)} open streams; ask any other from its own page.`);
      const names = page.items.filter(({ mechanism }) => SPECS[mechanism]?.forms.length).map((one) => one.stream);
      if (query.stream && !names.includes(query.stream)) {
        names.unshift(query.stream);
      }
      offer(stream, names.map((name) => [name, name]), query.stream ?? "");
      if (names.length) {
        await choose();
      } else {
        about.replaceChildren("No open stream yet. ", link(route("plan"), "Plan one"));
      }
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
          card("Question", labelled("Stream", stream), more, about, build, !allowed && labelled(tokenOf("analyst"), token, "used for what is asked here, not kept")),
          card("SQL", write),
          card("Request", json.element),
        ),
        make("div", { class: "stack" }, outcome, nothing, actSave, shown),
      ),
    ),
    title: "Ask",
    connections: [{ views: ["overview"] }],
    show() {},
    close() {
      answers.forEach((one) => one.close());
    },
  };
}
