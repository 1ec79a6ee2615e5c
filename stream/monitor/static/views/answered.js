// Shows answers in words, as a table, and as a chart with error bars.

import { barChart } from "../bars.js";
import { make } from "../dom.js";
import { amount, bound, count, cutToInterval, estimate, halfLength, interval, plural } from "../format.js";
import { BASES, FORMS, RANKS } from "../mechanisms.js";

export const OUTCOMES = { above: "Above the threshold", below: "Below the threshold", answer: "Answered", halted: "Halted", rejected: "Rejected" };

const INTERVAL = "95 % interval";
const LOW = " 95% low";
const HIGH = " 95% high";
const INFORMATIVE = " informative";
const MOST_RATIO = 20; // of the numbers of two measures on one axis

const isPriced = ({ outcome, reason }) => outcome === "rejected" && Boolean(reason?.startsWith("price: max_price:"));

/** Return the price of an answer to a request for the price alone (a known question has max_price 0); null for any other. */
export function requestedPrice(question, answer) {
  // The reason of an unknown question names its limit.
  const isAsked = question ? Number.parseFloat(question.max_price) === 0 : /, and the limit is 0%?;/.test(answer.reason);
  if (!isPriced(answer) || !isAsked) {
    return null;
  }
  return typeof answer.price === "number" ? `at most ε ${bound(answer.price)}` : answer.reason;
}

/** The answer to one question. */
export function questionAnswered(title, { answer, rows, cost, charged, warnings }) {
  const numbers = rows
    .filter((row) => row.estimate !== null && row.estimate !== undefined)
    .map((row) => ({ ...row, published: row.estimate, estimate: cutToInterval(row.estimate, row.interval_low, row.interval_high) }));
  const names = Object.keys(rows[0] ?? {}).filter((name) => !["estimate", "alpha", "choice", "position", "interval_low", "interval_high", "typical_error", "informative"].includes(name));
  const marked = numbers.some((row) => row.informative === false);
  const ofRanks = RANKS.some((form) => title === FORMS[form]); // their error bound is not in the unit of the numbers
  const labels = numbers.map((row) => ({ name: names.length ? names.map((name) => row[name]).join(", ") : title.split(",")[0], estimate: row.estimate, alpha: ofRanks ? null : row.alpha, low: row.interval_low, high: row.interval_high }));
  const surest = numbers.some((row) => typeof row.interval_low === "number");
  const ends = answer.choice && answer.choice_intervals ? ` (${INTERVAL} ${answer.choice_intervals[0].join(" … ")})` : "";
  const head = answer.choice ? `${OUTCOMES.answer}: ${answer.choice}${ends}` : answer.reason?.startsWith("exhausted: ") ? "Exhausted" : OUTCOMES[answer.outcome];
  const of = versionsOf([answer]);
  const below = answer.choice && !ofRanks && typeof answer.alpha === "number" ? [`The choice may be up to ${bound(answer.alpha)} below the best.`] : [];
  const table = !numbers.length && answer.choices ? tableOf([...names, "value", ...(answer.choice_intervals ? [INTERVAL] : [])], rows.map((row) => [...names.map((name) => row[name]), row.choice, ...(answer.choice_intervals ? [`${row.interval_low} … ${row.interval_high}`] : [])]), of) : !numbers.length && (answer.keys || answer.top_groups) ? tableOf(names, rows.map((row) => names.map((name) => row[name])), of) : numbers.length ? tableOf([...names, "estimate", ofRanks ? "± rows of rank" : "±", ...(surest ? [INTERVAL] : []), ...(marked ? [""] : [])], numbers.map((row) => [...names.map((name) => row[name]), estimate(row.estimate, ofRanks ? halfLength(row.interval_low, row.interval_high) : row.alpha), row.alpha === null ? "–" : bound(row.alpha), ...(surest ? [interval(row.published, row.interval_low, row.interval_high)] : []), ...(marked ? [row.informative === false ? "not informative" : ""] : [])]), of) : null;
  return card(head, answer, { cost, charged }, [...below, ...(answer.keys?.length === 0 ? ["No text is released."] : []), ...(answer.basis ? [`Based on ${BASES[answer.basis] ?? answer.basis}.`] : []), ...describeTypicalError(answer, title === FORMS.fraction), ...describeVersions(table ? [] : of)], warnings, labels.length ? [labels] : [], table);
}

/** The price of a question that was over its limit, with a button if `confirmed` asks it for this price; otherwise its answer. */
export function questionPriced(title, answered, confirmed) {
  const { answer } = answered;
  if (!isPriced(answer)) {
    return questionAnswered(title, answered);
  }
  const price = typeof answer.price === "number" ? `The answer costs ε ${bound(answer.price)} at most. Nothing was charged.` : answer.reason;
  const more = confirmed && make("p", {}, "This is more than a tenth of the stream's grant. ", make("button", { type: "button", onclick: () => confirmed(answer.price) }, "Ask for this price"));
  const element = make("section", { class: "card answered", "aria-label": "Price", "data-outcome": "priced" }, make("h2", {}, `Price: ${title}`), make("p", { class: "cost" }, price), more);
  return { element, close() {} };
}

/** The rows of a statement. */
export function statementAnswered({ stream, columns: all, rows: published, cost, charged, questions, answers, warnings, why }) {
  const columns = all.filter((name) => !name.endsWith(HIGH));
  const measures = columns.filter((name) => columns.includes(`${name} ±`));
  const names = columns.filter((name) => !measures.includes(name) && !measures.includes(name.replace(/ ±$/, "").replace(LOW, "").replace(INFORMATIVE, "")));
  const rows = published.map((row) => ({ ...row, ...Object.fromEntries(measures.map((name) => [name, cutToInterval(row[name], row[name + LOW], row[name + HIGH])])) }));
  const labels = measures.map((measure) =>
    rows.filter((row) => typeof row[measure] !== "string").map((row) => ({ name: [...names.map((name) => row[name]), measures.length > 1 || !names.length ? measure : null].filter((one) => one !== null).join(", "), estimate: row[measure], alpha: row[`${measure} ±`], low: row[measure + LOW], high: row[measure + HIGH] })),
  );
  const figure = (row, name) => (measures.includes(name) ? estimate(row[name], row[`${name} ±`]) : bound(row[name]));
  const cell = (row, name, index) => (name.endsWith(INFORMATIVE) ? (row[name] ? "" : "not informative") : name.endsWith(LOW) ? interval(published[index][name.replace(LOW, "")], row[name], row[name.replace(LOW, HIGH)]) : typeof row[name] === "number" && !names.includes(name) ? figure(row, name) : (row[name] ?? "–"));
  const of = versionsOf(answers);
  const table = tableOf(columns.map((name) => (name.endsWith(INFORMATIVE) ? "" : name.replace(LOW, ` ${INTERVAL}`))), rows.map((row, index) => columns.map((name) => cell(row, name, index))), of);
  const wrong = answers.find((one) => one.outcome === "rejected" || one.outcome === "halted");
  const bases = [...new Set(answers.map((one) => one.basis).filter(Boolean))].map((one) => BASES[one] ?? one);
  const last = wrong ?? answers[answers.length - 1];
  return card(`${questions === 1 ? "1 question" : `${count(questions)} questions`} to ${stream}`, last, { cost, charged }, [...(bases.length ? [`Based on ${bases.join("; ")}.`] : []), ...(why ? [`Stream chosen: ${why}.`] : []), ...describeVersions(of.length > 1 ? of : [])], warnings, byScale(labels), table);
}

const size = (labels) => Math.max(0, ...labels.flatMap(({ estimate, low, high }) => [estimate, low, high]).map((one) => Math.abs(one ?? 0)));

/** Join the numbers of measures that one axis can show: a mean beside a count would be a point at 0. */
function byScale(measures) {
  const charts = [];
  for (const labels of measures.filter((one) => one.length)) {
    const fit = charts.find((chart) => !size(labels) || !size(chart) || size(chart) <= MOST_RATIO * size(labels) && size(labels) <= MOST_RATIO * size(chart));
    fit ? fit.push(...labels) : charts.push(labels);
  }
  return charts;
}

function card(title, answer, price, sentences, warnings, labels, table) {
  const charts = labels.map((one) => barChart(one));
  const left = answer.outcome === "halted" ? null : (answer.tops_left ?? null);
  const spent = answer.spent ? `The stream has spent ${amount(answer.spent)}${left === null ? "" : `; ${plural(left, "charged answer is", "charged answers are")} left`}.` : "";
  const element = make(
    "section",
    { class: "card answered", "aria-label": "Answer", "data-outcome": answer.outcome },
    make("h2", {}, title),
    answer.reason && make("p", { class: "outcome", role: "alert", "data-level": "refused" }, answer.reason),
    warnings.map((text) => make("p", { class: "reason" }, `Warning: ${text}`)),
    charts.map((one) => one.element),
    table,
    make("p", { class: "cost" }, [describeCost(price, answer), ...sentences, spent].filter(Boolean).join(" ")),
  );
  return { element, close: () => charts.forEach((one) => one.close()) };
}

function describeCost({ cost, charged }, { basis }) {
  if (cost.epsilon > 0 || cost.rho > 0 || cost.delta > 0) {
    return `It cost ${amount(cost)}${basis === "release" ? ", once for all answers of the stream" : ""}.`;
  }
  return charged ? `It used up ${plural(charged, "charged answer")}; such a stream counts as spent in full from its first answer on.` : "It cost nothing.";
}

/** Return the versions of the data that answers are about; none if all are about the first version. */
function versionsOf(answers) {
  const answered = answers.filter(({ outcome }) => outcome !== "rejected" && outcome !== "halted");
  const found = [...new Set(answered.map(({ version }) => version ?? 1))].sort((one, other) => one - other);
  return found.some((one) => one > 1) ? found : [];
}

/** Return the typical error of an answer in words, if it has one. */
function describeTypicalError({ typical_error: error }, isShare) {
  return typeof error === "number" ? [`Estimates like this one are typically off by about ${Number(error.toPrecision(2)).toLocaleString("en")}${isShare ? "" : " rows"}.`] : [];
}

function describeVersions(versions) {
  return versions.length ? [`About version ${versions.join(" and ")} of the data.`] : [];
}

/** Let the name of a figure, as AVG(income), break before its attribute. */
const breakable = (text) => text.split(/(?=\()/).flatMap((part, index) => (index ? [make("wbr"), part] : [part]));

/** A table of rows; with a column of the version if `versions` has exactly one. */
function tableOf(columns, rows, versions) {
  const [version, ...others] = versions;
  const hasVersion = version !== undefined && !others.length;
  const heads = [...columns, ...(hasVersion ? ["version"] : [])].map((text) => make("th", { scope: "col" }, breakable(text)));
  const lines = rows.map((cells) => make("tr", {}, [...cells, ...(hasVersion ? [version] : [])].map((text, index) => make("td", { "data-short": columns[index] ?? "version" }, String(text)))));
  return make("div", { class: "table-frame tall", tabindex: "0" }, make("table", { class: "plain stacked", "aria-label": "Answers" }, make("thead", {}, make("tr", {}, heads)), make("tbody", {}, lines)));
}
