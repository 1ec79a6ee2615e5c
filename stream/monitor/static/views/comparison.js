// Compares all mechanisms for one form of questions, as `sotto plan` prints them.

import { explain, send } from "../api.js";
import { make, setText, tableHead } from "../dom.js";
import { given, labelled, latest, numberInput, offer, select, typed } from "../forms.js";
import { amount, bound, capital, count, mechanism as mechanismName } from "../format.js";
import { OPENINGS } from "../mechanisms.js";
import { card } from "../parts.js";

const MOST_NAMES = 6;
const HEADS = ["Mechanism", "α", "How ε is spent", ""];

/** The planner's forms of questions, in words. */
const QUESTIONS = {
  alarm: "is a number above a threshold?",
  candidates: "which of several candidates is the largest?",
  category: "one person's category",
  cells: "sums of a few cells",
  count: "how many rows",
  fraction: "which share of all rows",
  groups: "how many rows in each group",
  mean: "the mean of an attribute",
  people: "how many people",
  people_groups: "how many people in each group",
  person_sum: "the sum over people, each up to a bound",
  quantile: "a quantile, such as the median",
  rate: "which share of some rows",
  running: "how many so far, after each window",
  sum: "the sum of an attribute",
  terms: "weighted sums of conditions",
  texts: "which texts, and how many",
  value: "a number that the question carries",
  values: "several numbers that the question carries",
};

/** Name the compared attributes among `total`: all, or each, or how many. */
function namesOf(attributes, total) {
  if (attributes.length === total && total > 1) {
    return `all ${count(total)} attributes`;
  }
  return attributes.length > MOST_NAMES ? `${count(attributes.length)} of ${count(total)} attributes` : attributes.join(", ");
}

/**
 * `compare(fields, total, why)` takes the source, the budget, the table's number of attributes and, if nothing can be
 * compared, why; `onTake(mechanism)` chooses a row.
 */
export function comparisonCard(session, onTake) {
  let shown = null; // the fields of the latest comparison
  let offered = null; // the source whose forms are offered; a second input may come before the answer to the first
  let declared = 0; // the number of attributes of its table
  const form = select([]);
  const wanted = numberInput({ placeholder: "none" });
  const progress = make("p", { class: "quiet", role: "status" });
  const problem = make("p", { class: "outcome", role: "status", "data-level": "refused", hidden: true });
  const advice = make("p", { class: "outcome", role: "status", hidden: true });
  const body = make("tbody");
  const head = tableHead(...HEADS);
  const table = make("table", { class: "plain people-table", "aria-label": "Comparison", hidden: true }, head, body);
  const others = make("details", { hidden: true }, make("summary", {}, "Mechanisms that do not apply"));
  const element = card("Comparison", make("div", { class: "sheet" }, labelled("Questions", form), labelled("Error wanted", wanted, "optional: the ε that each mechanism needs for it")), progress, problem, advice, table, others);
  form.addEventListener("change", () => shown && compare(shown, declared));
  wanted.addEventListener("change", () => shown && compare(shown, declared));

  const compare = latest(async (isLatest, fields, total, why = "") => {
    if (why) {
      shown = null;
      setText(progress, why);
      problem.hidden = table.hidden = others.hidden = advice.hidden = true;
      return;
    }
    const alpha = typed(wanted);
    const sent = given({ ...fields, alpha, form: offered === fields.source ? form.value || undefined : undefined });
    shown = fields;
    declared = total;
    setText(progress, "Comparing the mechanisms…");
    try {
      const found = await send("/api/comparisons", session.token, { method: "POST", body: sent });
      if (isLatest()) {
        problem.hidden = true;
        setText(progress, "");
        offered = fields.source;
        show(found, alpha);
      }
    } catch (error) {
      if (isLatest()) {
        setText(progress, "");
        problem.hidden = false;
        table.hidden = others.hidden = advice.hidden = true;
        setText(problem, plainWords(explain(error.problem ?? { message: error.message }, amount)));
      }
    }
  });

  function show({ form: chosen, forms, choice, keeps, least_alpha: what, counted, warning, attributes, mechanisms }, alpha) {
    offer(form, forms.map((name) => [name, QUESTIONS[name] ?? name]), chosen);
    const fitting = mechanisms.filter((one) => one.applies);
    body.replaceChildren(...fitting.map((one, index) => line(one, index === 0, alpha)));
    table.hidden = !fitting.length;
    setText(head.querySelectorAll("th")[1], shown.queries ? `α for ${count(shown.queries)} questions` : HEADS[1]);
    const sentences = [
      choice === null ? "No mechanism answers these questions about this source." : `${attributes ? `Over ${namesOf(attributes, declared)}: ` : ""}${mechanismName(choice)} has the smallest ${keeps || alpha === undefined ? "error" : `error, but does not keep ${alpha}`}${what ? `; α is ${what}` : ""}.`,
      fitting[0]?.vacuous && "It is vacuous: a constant answer would keep it.",
      counted && `${capital(counted)}.`,
      attributes && choice !== null && shown.rows === undefined && !warning && "Whether that is informative depends on the number of rows, which is not given.",
      warning && `${capital(warning)}.`,
    ];
    advice.hidden = false;
    advice.dataset.level = choice === null || warning || !keeps || fitting[0].vacuous ? "refused" : "done";
    setText(advice, plainWords(sentences.filter(Boolean).join(" ")));
    const rest = mechanisms.filter((one) => !one.applies);
    others.hidden = !rest.length;
    others.replaceChildren(others.firstChild, make("ul", {}, rest.map((one) => make("li", {}, `${mechanismName(one.mechanism)}: ${plainWords(one.why)}`))));
  }

  function line({ mechanism: kind, over, alpha, epsilon, vacuous, why, value_error: inValue }, isBest, target) {
    const notes = [vacuous && "vacuous", typeof inValue === "number" && `about ±${bound(inValue)} in value`, target !== undefined && (typeof epsilon === "number" ? `for ${target}: ε ${bound(epsilon)}` : `no ε keeps ${target}`)];
    const take = kind in OPENINGS && make("button", { type: "button", "aria-label": `Take ${mechanismName(kind)}`, onclick: () => onTake(kind) }, "Take");
    const name = make("span", { class: "whole" }, `${isBest ? "→ " : ""}${mechanismName(kind)}`);
    const texts = [over ? ` over ${over.join(", ")} alone` : "", [alpha === null ? "none" : bound(alpha), ...notes].filter(Boolean).join("; "), plainWords(why)];
    const cells = texts.map((text, index) => make("td", { "data-label": HEADS[index], class: index === 1 ? "cell-figure" : null }, index === 0 ? make(isBest ? "strong" : "span", {}, name, text) : text));
    return make("tr", {}, cells, make("td", {}, take));
  }

  return { element, compare };
}

/** The planner names options of the command; the page has fields of the same names. */
function plainWords(text) {
  return text.replace(/--([a-z-]+)/g, "$1");
}
