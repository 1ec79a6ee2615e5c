// The fields of each mechanism, and the kinds of questions that its streams accept.

const COMPARES = ["threshold", "cutoff", "monotone", "sums", "people"];

/** Questions about one ordered attribute; the first two are ranks, whose error bound is in rows. */
export const RANKS = ["quantile", "iqr"];
export const STATISTICS = [...RANKS, "variance", "stddev"];

/** For each mechanism: kinds of sources, fields, kinds of questions about tables, and if questions may have an alpha. */
export const SPECS = {
  above_threshold: { on: ["values", "table", "events"], fields: COMPARES, forms: ["count", "people", "sum"] },
  numeric_sparse: { on: ["values", "table", "events"], fields: [...COMPARES, "numbers"], forms: ["count", "people", "sum"] },
  laplace: { on: ["values", "table", "events"], fields: ["answers", "dimensions"], forms: ["count", "people", "groups", "top", "fraction", "rate", "sum", "mean", "people_groups", "repeaters", "person_sum", ...STATISTICS], alpha: true },
  randomized_response: { on: ["records"], fields: ["categories"], forms: [] },
  histogram: { on: ["table", "events"], fields: ["attributes", "answers"], forms: ["count", "groups", "top", "fraction", "rate", "cell", ...STATISTICS] },
  noisy_max: { on: ["values", "table"], fields: ["answers", "monotone", "sums", "people"], forms: ["choice"] },
  exponential: { on: ["values", "table"], fields: ["answers", "monotone", "sums", "people"], forms: ["choice"] },
  pmw: { on: ["table"], fields: ["attributes", "warm_start", "workload", "updates", "beyond", "typical_error", "worst_case", "gap", "rows"], forms: ["count", "groups", "top", "fraction", "rate", "sum", "mean", ...STATISTICS], alpha: true },
  sparse_pmw: { on: ["table"], fields: ["attributes", "sparsity", "updates", "gap", "rows"], forms: ["cell"] },
  sparse_project: { on: ["table"], fields: ["attributes", "sparsity", "projections"], forms: ["cell"] },
  lazy_histogram: { on: ["table"], fields: ["attributes", "sparsity"], forms: ["cell"] },
  running_count: { on: ["events"], fields: ["steps"], forms: [] },
  unknown_groups: { on: ["table", "events"], fields: ["answers", "counts"], forms: ["texts", "text_people"] },
};

/** The mechanisms of a stream to open: the budget service replaces `auto` by the best one for counts of two attributes. */
export const OPENINGS = { ...SPECS, auto: { on: ["table"], fields: [], forms: [] } };

/** Fields of mechanisms: label, input type and initial value. */
export const FIELDS = {
  threshold: { text: "Threshold", type: "number", value: "100" },
  cutoff: { text: "Charged answers (cutoff)", type: "number", value: "3" },
  answers: { text: "Answers to pay for", type: "number", value: "100", hint: "each is charged; after them the stream is exhausted" },
  updates: { text: "Charged answers to pay for", type: "number", hint: "empty: chosen by the planner" },
  dimensions: { text: "Most numbers in one answer", type: "number", value: "1" },
  monotone: { text: "One person changes all queries in the same direction", type: "flag", hint: "true for counts if neighbors add or remove a row" },
  counts: { text: "Counts", type: "choice", options: [["true", "a noisy count with each text"], ["false", "texts alone, without counts"]], hint: "without counts, all of ε selects the texts", flag: true },
  people: { text: "Count people instead of rows", type: "flag" },
  sums: { text: "Attributes whose sums may be asked for", type: "integers" },
  numbers: { text: "Numbers from", type: "choice", options: [["fresh", "fresh noise"], ["gap", "the gap, free"]] },
  attributes: { text: "Attributes", type: "attributes" },
  categories: { text: "Categories", type: "list", value: "yes, no" },
  warm_start: { text: "Measured with the first answer", type: "choice", options: [["auto", "chosen by the planner"], ["0", "nothing"], ["1", "every attribute"], ["2", "every pair"], ["workload", "attributes and chosen sets"]], hint: "of sets, those whose estimates err most are chosen", whole: true },
  workload: { text: "Sets asked together", type: "sets", hint: "attributes that questions combine; empty: all pairs. Some of these sets are measured" },
  beyond: { text: "When charged answers are used up", type: "choice", options: [["unpromised", "answer without an error bound"], ["end", "stop answering"]] },
  typical_error: { text: "Publish the typical error of estimates", type: "flag", hint: "always if sets are chosen" },
  worst_case: { text: "Enough updates for every table and analyst", type: "flag" },
  gap: { text: "Error that triggers a measurement", type: "number", hint: "a share of the rows; empty: planned" },
  rows: { text: "Public number of rows", type: "number", hint: "your guarantee if the number is private" },
  sparsity: { text: "Most cells in one question", type: "number", value: "16" },
  projections: { text: "Rows of the projection", type: "number", value: "4096" },
  steps: { text: "Windows to count over", type: "number", value: "365" },
};

/** Kinds of questions, in words. */
export const FORMS = {
  count: "how many rows",
  people: "how many people",
  groups: "how many rows in each group",
  top: "the largest groups",
  texts: "how many rows with each text that enough rows have",
  names: "which texts enough rows have",
  text_people: "how many people with each text that enough people have",
  fraction: "which share of all rows",
  rate: "which share of some rows, in each group",
  sum: "the sum of an attribute",
  mean: "the mean of an attribute",
  quantile: "a quantile of an attribute, such as its median",
  iqr: "the interquartile range of an attribute",
  variance: "the variance of an attribute",
  stddev: "the standard deviation of an attribute",
  people_groups: "how many people in each group",
  repeaters: "how many people with several rows",
  person_sum: "the sum over people, each up to a bound",
  cell: "how many rows in one cell",
  choice: "which value is the most frequent",
};

/** Origins of an answer's number (its `basis`), in words. */
export const BASES = {
  noisy: "noise measured for this question",
  fresh: "fresh noise",
  gap: "the noisy gap above the threshold",
  release: "the release of all cells",
  hypothesis: "the stream's estimate",
  independence: "the stream's estimate; some of these attributes were never measured together, or one never at all, so the number is a guess",
  measured: "what the stream has measured",
  randomized: "a randomly drawn category",
  "too-many-texts": "a noisy test that found too many different texts in the window, or in all windows of a running count",
};

/** Mechanisms that charge every answer. */
export const ALWAYS_CHARGED = ["laplace", "noisy_max", "exponential", "unknown_groups"];

/** Mechanisms whose streams on live topics end after a fixed number of windows. */
export const CHARGED_BY_WINDOW = [...ALWAYS_CHARGED, "histogram", "running_count"];

/** Return the number of answers for which an error bound holds: a stream that is charged for each has no more. */
export function promisedAnswers(kind, { cutoff, expected_queries: expected }) {
  if (kind === "running_count") {
    return cutoff ?? expected; // its error bound holds for all of its numbers
  }
  return CHARGED_BY_WINDOW.includes(kind) && cutoff ? Math.min(cutoff, expected) : expected;
}
