// The answers of one stream, read from the public log: newest first, page by page, and as a file.

import { explain, open, parameters, send } from "../api.js";
import { download, make, setText, tableHead } from "../dom.js";
import { latest } from "../forms.js";
import { amount, bound, capital, count, cutToInterval, estimate, halfLength, interval, number, plural, time, windowText } from "../format.js";
import { RANKS, SPECS } from "../mechanisms.js";
import { card, emptyState } from "../parts.js";
import { describeQuery } from "../questions.js";
import { OUTCOMES, requestedPrice } from "./answered.js";

const LIMIT = 25;
const ALPHA = 4; // the place of α in HEADS
const SAVED_AT_A_TIME = 500;
const SHOWN_NUMBERS = 4;
const HEADS = ["Time", "Question", "Answer", "95 % interval", "± (α)", "Price", "Spent so far"];
const UNKNOWN_UNIT = "± (α; of a quantile in rows of rank)"; // the head if a question is unknown
const FILES = { jsonl: "application/x-ndjson", csv: "text/csv" };
const RETRIES = 5;
const STATUS_DELAY = 1; // seconds by which a stream's status may be later than its answer
const UNKNOWN_QUESTIONS = "Answers in Kafka do not contain their questions: if this monitor has not asked a question since its start, only its id is shown, numbers have no groups, and warnings and most marks of numbers that are not informative are missing.";

/** `show(row, standing)` gets the stream's row and standing query; the newest page is read at its first call. */
export function answerHistory(stream, session) {
  const base = `/api/streams/${encodeURIComponent(stream)}/answers`;
  let row = null;
  let unitOf = null; // the unit of an answer's α
  let older = null; // the cursor of the next page
  let shownUntil = null; // the time of the last answer when the newest page was read
  let saving = null; // the running download
  const body = make("tbody");
  const head = tableHead(...HEADS);
  const table = make("table", { class: "plain people-table history", "aria-label": "Answers of the stream" }, head, body);
  const place = make("p", { class: "quiet", role: "status" });
  const shared = make("div");
  const problem = make("p", { class: "outcome", role: "alert", "data-level": "refused", hidden: true });
  const unasked = emptyState("No answer yet", "Answers appear here once the stream has been asked.");
  const unkept = emptyState("No answer is kept", "Kafka has deleted the answers of this stream, or they were given before its ledger was restored: a backup has no answers.");
  const none = make("div", {}, unasked, unkept);
  const stale = make("p", { class: "quiet", role: "status", hidden: true }, "The stream has given newer answers: press “Newest”.");
  const newest = make("button", { type: "button", onclick: () => read({}) }, "Newest");
  const next = make("button", { type: "button", onclick: () => read({ before: older }) }, "Older");
  const jump = make("button", { type: "button", hidden: true, onclick: () => read({ until: row.last_answered + 60 }) }, "Go to the last answer");
  const saves = Object.keys(FILES).map((ending) => make("button", { type: "button", onclick: () => save(ending) }, ending === "csv" ? "Save as CSV" : "Save as JSON lines"));
  const stop = make("button", { type: "button", hidden: true, onclick: () => saving?.abort() }, "Stop");
  const progress = make("span", { class: "quiet", role: "status" });
  const element = card("Answers", make("div", { class: "filters" }, newest, next, jump, saves, stop, progress), problem, stale, place, shared, table, none);
  none.hidden = table.hidden = true;

  function disableSaves(disabled) {
    for (const one of saves) {
      one.disabled = disabled;
    }
  }

  function tell(error) {
    problem.hidden = error === null;
    setText(problem, error === null ? "" : error.problem ? explain(error.problem, amount) : error.message);
  }

  const read = latest(async (isLatest, where) => {
    setText(place, "Reading the log…");
    const last = row.last_answered;
    try {
      const page = await send(`${base}?${parameters({ limit: LIMIT, ...where })}`, session.token);
      if (isLatest()) {
        tell(null);
        if (where.before === undefined) {
          shownUntil = Math.max(last ?? 0, page.items[0]?.time ?? 0);
          stale.hidden = true;
        }
        showPage(page, where);
      }
    } catch (error) {
      if (isLatest()) {
        setText(place, "");
        tell(error);
      }
    }
  });

  function showPage({ items, before, reached, unreadable }, where) {
    older = before;
    next.disabled = before === null;
    const common = sharedWarnings(items);
    shared.replaceChildren(...common.map((text) => make("p", { class: "reason" }, `Warning about each answer: ${text}`)));
    body.replaceChildren(...items.map((one) => answerRow({ ...one, warnings: one.warnings.filter((text) => !common.includes(text)) }, row.mechanism, unitOf(one))));
    setText(head.querySelectorAll("th")[ALPHA], items.some((one) => unitOf(one) === null) ? UNKNOWN_UNIT : HEADS[ALPHA]);
    table.hidden = !items.length;
    none.hidden = Boolean(items.length) || before !== null || where.before !== undefined;
    unasked.hidden = row.answered > 0;
    unkept.hidden = row.answered === 0;
    const last = row.last_answered;
    jump.hidden = Boolean(items.length) || before === null || last === null || reached === null || last >= reached;
    const priced = items.filter((one) => requestedPrice(one.question, one.answer) !== null).length;
    const answers = items.length - priced;
    const found = items.length ? `${[answers && plural(answers, "answer"), priced && plural(priced, "price request")].filter(Boolean).join(" and ")}, newest first` : "No answer of this stream";
    const more = before === null ? "; no older ones are kept in the log." : `; read back to ${time(reached ?? Date.now() / 1000)}.`;
    const unknown = items.some(({ question, answer }) => question === null && !answer.window) ? ` ${UNKNOWN_QUESTIONS}` : "";
    setText(place, none.hidden ? `${found}${more}${unknown}${unreadable ? ` ${plural(unreadable, "answer is", "answers are")} of a later version and left out.` : ""}` : "");
  }

  /** Save all answers as a file, page by page: each request reads a bounded part of the log. */
  async function save(ending) {
    saving = new AbortController();
    const { signal } = saving;
    const parts = [];
    let lines = 0;
    let address = `${base}.${ending}?limit=${SAVED_AT_A_TIME}`;
    disableSaves(true);
    stop.hidden = false;
    tell(null);
    try {
      while (address !== null) {
        const response = await retryWhenBusy(() => open(address, session.token, { signal }), signal);
        const text = await response.text();
        // Each page of a CSV begins with the names of the columns.
        const kept = ending === "csv" && parts.length ? text.slice(text.indexOf("\n") + 1) : text;
        parts.push(kept);
        lines += kept.split("\n").length - 1;
        setText(progress, `${count(lines)} lines read…`);
        address = /<([^>]+)>; rel="next"/.exec(response.headers.get("Link") ?? "")?.[1] ?? null;
      }
      download(new Blob(parts, { type: FILES[ending] }), `answers.${ending}`);
      setText(progress, `${count(lines)} lines saved.`);
    } catch (error) {
      setText(progress, signal.aborted ? "Stopped; nothing was saved." : "");
      if (!signal.aborted) {
        tell(error);
      }
    } finally {
      stop.hidden = true;
      saving = null;
      disableSaves(false);
    }
  }

  return {
    element,
    show(given, standing) {
      const first = row === null;
      row = given;
      unitOf = (one) => unitOfAlpha(one, given.mechanism, standing);
      const isStale = shownUntil !== null && given.last_answered > shownUntil + STATUS_DELAY;
      stale.hidden = !isStale || !none.hidden;
      if (first || (isStale && !none.hidden)) {
        read({});
      }
    },
    close: () => saving?.abort(),
  };
}

/** Repeat a request that the monitor or Kafka was too busy for. */
async function retryWhenBusy(request, signal) {
  for (let tried = 1; ; tried += 1) {
    try {
      return await request();
    } catch (error) {
      if (signal.aborted || !error.retriable || tried === RETRIES) {
        throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, tried * 1000));
    }
  }
}

/** The unit of an answer's α: empty if it is that of the numbers, null if an unknown question may be of ranks. */
function unitOfAlpha({ answer, question }, mechanism, standing) {
  if (typeof answer.alpha !== "number") {
    return "";
  }
  if (question === null && !answer.window) {
    return RANKS.some((form) => SPECS[mechanism]?.forms.includes(form)) ? null : "";
  }
  return RANKS.some((form) => (question ?? standing)?.[form]) ? ` ${question ? "rows" : "events"} of rank` : "";
}

/** Return the warnings that all answers of a page have, which the page states once; refusals have no index. */
function sharedWarnings(items) {
  const [first, ...rest] = items.filter(({ answer }) => typeof answer.index === "number");
  return first?.warnings.filter((text) => rest.every(({ warnings }) => warnings.includes(text))) ?? [];
}

function answerRow(row, mechanism, unit) {
  const { time: when, answer, question, warnings, cost } = row;
  const names = unit === null ? HEADS.with(ALPHA, UNKNOWN_UNIT) : HEADS;
  const asked = question === null ? (answer.window ? "" : `id ${answer.id}`) : describeQuery(question, mechanism);
  const cells = [
    time(when),
    [asked, answer.window ? `${mechanism === "running_count" ? "so far, at the end of " : ""}${windowText(answer.window)} UTC` : "", pairs(answer.group), answer.version > 1 ? `version ${answer.version} of the data` : "", ...warnings.map((one) => `warning: ${one}`)].filter(Boolean).join(" · "),
    answerText(row, unit),
    intervalText(answer),
    typeof answer.alpha === "number" ? `${bound(answer.alpha)}${unit ?? ""}` : "–",
    typeof answer.price === "number" && answer.outcome !== "rejected" ? `ε ${number(answer.price)}` : cost === null ? "–" : amount(cost),
    answer.spent ? amount(answer.spent) : "–",
  ];
  return make(
    "tr",
    {},
    cells.map((text, index) => make("td", { "data-label": names[index], "data-empty": text === "–" ? "true" : null, class: /^-?[\d.,]+( |$)/.test(text) ? "cell-figure" : null }, text)),
  );
}

/** Isolate a text from right to left, beside which numbers would change places. */
const isolate = (text) => (/[\u0590-\u08ff\ufb1d-\ufefc]/.test(text) ? `\u2068${text}\u2069` : text);

const pairs = (group) => Object.entries(group ?? {}).map(([name, value]) => `${isolate(name)} ${isolate(value)}`).join(", ");

/** Join the first texts and say how many more there are. */
function listFirst(texts) {
  const more = texts.length - SHOWN_NUMBERS;
  return `${texts.slice(0, SHOWN_NUMBERS).join("; ")}${more > 0 ? `; … ${count(more)} more` : ""}`;
}

/** Say how many of the numbers that are not shown are not informative. */
function describeHiddenMarks(marked) {
  const count = [...marked].filter((place) => place >= SHOWN_NUMBERS).length;
  return count ? ` (${count} not informative)` : "";
}

/** Format a number with as many digits as its interval or, without one, as its error bound if that has its unit. */
const numberText = (value, ends, bound) => estimate(cutToInterval(value, ...(ends ?? [])), halfLength(...(ends ?? [])) ?? bound);

function answerText({ question, answer, groups, uninformative }, unit) {
  const own = unit === "" ? answer.alpha : null;
  const marked = new Set(uninformative);
  const mark = (place) => (marked.has(place) ? " (not informative)" : "");
  const { outcome, estimate: value, estimates, choice, choices, keys, top_groups: tops, interval: ends, intervals, reason } = answer;
  const priced = requestedPrice(question, answer);
  if (priced !== null) {
    return `Price asked: ${priced}`;
  }
  if (outcome === "answer" && keys?.length === 0) {
    return `No text is released${answer.basis === "too-many-texts" ? ": too many texts" : ""}`;
  }
  const names = keys?.map(isolate) ?? tops?.map(pairs) ?? (groups.length ? groups.map(pairs) : null);
  const several = estimates?.map((one, index) => numberText(one, intervals?.[index], own)) ?? choices;
  if (several) {
    return listFirst(several.map((one, index) => `${names ? `${names[index]}: ` : ""}${one}${mark(index)}`)) + describeHiddenMarks(marked);
  }
  const text = typeof value === "number" ? numberText(value, ends, own) : (choice ?? (names ? listFirst(names) : ""));
  const told = (outcome === "answer" && text) || reason?.startsWith("exhausted: ") ? "" : OUTCOMES[outcome];
  return [told, text, told ? reason : reason && capital(reason)].filter(Boolean).join(": ") + mark(0);
}

function intervalText({ estimate: value, estimates, interval: ends, intervals, choice_intervals: texts }) {
  if (ends) {
    return interval(value, ...ends);
  }
  return intervals ? listFirst(intervals.map((one, index) => interval(estimates[index], ...one))) : texts ? listFirst(texts.map((one) => one.join(" to "))) : "–";
}
