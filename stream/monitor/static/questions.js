// Says questions and their prices in words.

import { amount, plural, words } from "./format.js";
import { ALWAYS_CHARGED, FORMS, STATISTICS } from "./mechanisms.js";

/** The kind of a question, by its fields. */
function formOf(query, mechanism) {
  if (query.people) {
    return mechanism === "unknown_groups" ? "text_people" : query.min_rows ? "repeaters" : query.group_by ? "people_groups" : "people";
  }
  const own = ["rate", "sum", "mean", "person_sum", ...STATISTICS].find((name) => query[name]);
  if (own) {
    return own;
  }
  if (query.group_by) {
    return mechanism === "unknown_groups" ? "texts" : query.top ? "top" : "groups";
  }
  return query.candidates ? "choice" : query.cells ? "cell" : query.fraction ? "fraction" : "count";
}

/** A question in words: its kind, attributes, parameters and condition. */
export function describeQuestion(title, asked) {
  const about = asked.sum ?? asked.mean ?? asked.quantile ?? asked.iqr ?? asked.variance ?? asked.stddev ?? asked.person_sum;
  const words = { q: "q", bound: "at most", min_rows: "at least", top: "first", threshold: "threshold" };
  const named = [about, ...Object.entries(words).map(([field, word]) => (asked[field] ?? "") !== "" && `${word} ${asked[field]}`)].filter(Boolean);
  const groups = asked.group_by?.length ? ` ${title.endsWith("group") ? "of" : "by"} ${asked.group_by.join(", ")}` : "";
  const rows = asked.where && asked.where !== "TRUE" ? `, where ${asked.where}` : "";
  return `${title}${named.length ? ` (${named.join(", ")})` : ""}${asked.rate ? ` where ${asked.rate}` : ""}${groups}${rows}`;
}

/** A published question in words. */
export function describeQuery(query, mechanism) {
  return describeQuestion(FORMS[formOf(query, mechanism)], query);
}

const isFree = ({ epsilon, delta, rho }) => !epsilon && !delta && !rho;

/** What a SELECT costs, in words. */
export function describeStatementPrice({ stream, mechanism, questions, free, charged, why }) {
  const sent = `The statement sends ${plural(questions, "question")} to ${stream}${why ? ` (${why})` : ""}.`;
  if (isFree(charged)) {
    return `${sent} ${ALWAYS_CHARGED.includes(mechanism) ? `It uses up ${plural(questions, "charged answer")}, at no further cost: the stream has spent its whole grant already.` : "It costs nothing."}`;
  }
  if (ALWAYS_CHARGED.includes(mechanism) || amount(free) === amount(charged)) {
    return `${sent} It costs ${amount(charged)}.`;
  }
  return `${sent} It costs at most ${amount(charged)}, and ${isFree(free) ? "nothing" : amount(free)} without ${words(mechanism).charged}.`;
}

/** What the next answer costs, in words. */
export function describePrice(free, charged, mechanism, hasOwnPrice) {
  const own = hasOwnPrice ? " With “Error at most” it costs what “Price” shows." : "";
  if (isFree(charged) && ALWAYS_CHARGED.includes(mechanism)) {
    return `The next answer uses up one charged answer, at no further cost: the stream has spent its whole grant already.${own}`;
  }
  if (isFree(charged)) {
    return `The next answer costs nothing: its cost is paid already.${own}`;
  }
  if (ALWAYS_CHARGED.includes(mechanism) || amount(free) === amount(charged)) {
    return `The next answer costs ${amount(charged)}.${own}`;
  }
  const names = words(mechanism);
  return `The next answer costs ${amount(charged)} if it is one of the ${names.charged}, and ${isFree(free) ? "nothing" : amount(free)} otherwise.${own}`;
}
