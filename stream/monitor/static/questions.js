// Says questions in words.

import { FORMS, STATISTICS } from "./mechanisms.js";

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
