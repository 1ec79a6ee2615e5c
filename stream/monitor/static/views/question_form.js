// The form of a question to a stream on a table: its kind, its rows and its requested error.

import { make } from "../dom.js";
import { given, labelled, numberInput, select, textInput, ticks, typed, typedNumbers } from "../forms.js";
import { FORMS, RANKS, SPECS } from "../mechanisms.js";
import { cellsOf, isDate } from "../calendar.js";
import { isNumeric, isOrdered, literal, quoted, whereBuilder } from "./where.js";

const MOST_CANDIDATES = 256;
const OF_PEOPLE = ["people", "people_groups", "repeaters", "person_sum", "text_people"]; // offered if the source has a person column
const OF_NUMBERS = ["sum", "mean", "person_sum", "variance", "stddev"];
const WHOLE = { inputmode: "numeric", min: "1", step: "1" };

/** True if a table has what a kind of question is about: a person column, texts, or an attribute that fits. */
export function isAbout(kind, { person, texts, attributes }) {
  const some = (test) => Object.values(attributes).some(test);
  if (["texts", "text_people"].includes(kind)) {
    return Object.keys(texts ?? {}).length > 0 && (kind === "texts" || Boolean(person));
  }
  if (OF_PEOPLE.includes(kind) && !person) {
    return false;
  }
  return RANKS.includes(kind) ? some(isOrdered) : !OF_NUMBERS.includes(kind) || some(isNumeric);
}

/** `wanted` is the kind of question to begin with, if the stream answers it. `value()` is the query without id and stream; `problem()` is the reason why it cannot be asked yet. */
export function questionForm(spec, source, onChange, wanted = "") {
  const attributes = source.attributes;
  const kind = spec.mechanism.kind;
  const mine = spec.mechanism.attributes ?? Object.keys(attributes);
  const own = Object.fromEntries(mine.map((name) => [name, attributes[name]]));
  const numeric = mine.filter((name) => isNumeric(own[name]));
  const summable = spec.mechanism.sums?.length ? spec.mechanism.sums : kind.endsWith("threshold") || kind === "numeric_sparse" ? [] : numeric;
  const ranked = mine.filter((name) => isOrdered(own[name]));
  const peopleAlone = spec.mechanism.people === true;
  const uncounted = spec.mechanism.counts === false; // texts alone: no count of rows or people
  const offered = SPECS[kind].forms.filter((form) => !(uncounted && form === "text_people") && (peopleAlone ? ["people", "choice"].includes(form) : !OF_PEOPLE.includes(form) || Boolean(source.person)) && (!OF_NUMBERS.includes(form) || summable.length) && (!RANKS.includes(form) || ranked.length));
  const titleOf = (name) => FORMS[uncounted && name === "texts" ? "names" : name];
  const form = select(offered.map((name) => [name, titleOf(name)]), wanted);
  const added = select(summable.map((name) => [name, name]));
  const ordered = select(ranked.map((name) => [name, name]));
  const share = numberInput({ placeholder: "0.5" });
  const alpha = numberInput({ placeholder: "what the stream promises" });
  const limit = numberInput({ placeholder: "no limit", inputmode: "text" });
  const threshold = numberInput({ placeholder: String(spec.mechanism.threshold ?? "") });
  const groups = ticks("Groups of", mine.map((name) => [name, name]), mine.length === 1 ? mine : []);
  const texts = select(Object.keys(source.texts ?? {}).map((name) => [name, name]));
  const choices = select(mine.filter((name) => size(own[name]) > 1 && size(own[name]) <= MOST_CANDIDATES).map((name) => [name, name]));
  const cell = Object.entries(own).map(([name, domain]) => [name, valueOf(name, domain), domain]);
  const where = whereBuilder(own, onChange);
  const most = numberInput({ value: "5", ...WHOLE });
  const least = numberInput({ value: "2", ...WHOLE });
  const bound = numberInput(WHOLE);
  const grouped = ticks("In each group of", mine.map((name) => [name, name]), []);
  const hits = whereBuilder(own, onChange, { required: true, legend: "Share of the rows where" });
  const parts = {
    hits: hits.element,
    most: labelled("Groups", most, "the largest ones by their noisy counts"),
    least: labelled("Rows at least", least, "of one person"),
    bound: labelled("Bound", bound, "each person's sum counts up to this bound; public"),
    added: labelled("Attribute", added),
    ordered: labelled("Attribute", ordered),
    share: labelled("Quantile", share, "a number from 0 to 1: 0.5 is the median; without groups also several, as 0.1, 0.9"),
    groups: groups.element,
    texts: labelled("Texts of", texts, "only texts that enough rows have are released"),
    grouped: grouped.element,
    choices: labelled("Values of", choices, `each a candidate: how many rows have it; of attributes with 2 to ${MOST_CANDIDATES} values`),
    cell: make("fieldset", { class: "ticks" }, make("legend", {}, "In the cell"), cell.map(([name, control]) => labelled(name, control))),
    where: where.element,
    alpha: labelled("Error at most", alpha, "optional; the answer is charged the least that keeps this bound"),
    limit: labelled("Price at most", limit, "optional; an ε, or a part of the grant, such as 10%. A question that may cost more is refused without a charge. If empty, only a question with “Error at most” needs a confirmation above 10%"),
    threshold: labelled("Threshold", threshold, "optional, public; in place of the stream's own"),
  };
  const needs = {
    count: ["where", "alpha", "limit", "threshold"],
    people: ["where", "alpha", "limit", "threshold"],
    fraction: ["where", "alpha", "limit"],
    rate: ["hits", "grouped", "where", "limit"],
    top: ["groups", "most", "where", "alpha", "limit"],
    people_groups: ["groups", "where", "alpha", "limit"],
    repeaters: ["least", "where", "alpha", "limit"],
    person_sum: ["added", "bound", "where", "alpha", "limit"],
    groups: ["groups", "where", "alpha", "limit"],
    texts: ["texts", "grouped", "where"],
    text_people: ["texts", "grouped", "where"],
    sum: ["added", "where", "alpha", "limit", "threshold"],
    mean: ["added", "where", "limit"],
    quantile: ["ordered", "share", "grouped", "where", "limit"],
    iqr: ["ordered", "grouped", "where", "limit"],
    variance: ["added", "grouped", "where", "limit"],
    stddev: ["added", "grouped", "where", "limit"],
    cell: ["cell"],
    choice: ["choices"],
  };
  const takesAlpha = Boolean(SPECS[kind].alpha) && !spec.mechanism.worst_case && spec.calibration !== "textbook";
  const element = make("div", { class: "sheet" }, make("div", { class: "wide" }, labelled("Ask", form)), Object.values(parts));

  function show() {
    for (const [name, part] of Object.entries(parts)) {
      part.hidden = !needs[form.value].includes(name) || (["alpha", "limit"].includes(name) && !takesAlpha) || (name === "threshold" && !("threshold" in spec.mechanism));
    }
    // Out of the page while another form is chosen: two builders would have fields of equal names.
    if (parts.hits.hidden) {
      parts.hits.remove();
    } else {
      parts.most.before(parts.hits);
    }
  }

  /** Return the question's fields; parts that are hidden have none. */
  function value() {
    const kindOfQuestion = form.value;
    const typedIn = (name, control) => (parts[name].hidden ? undefined : typed(control));
    const ticked = (boxes) => (boxes.values().length ? boxes.values() : undefined);
    if (kindOfQuestion === "choice") {
      return { candidates: choices.value ? candidates(choices.value, own[choices.value]).map((one) => ({ ...one, ...(peopleAlone ? { people: true } : {}) })) : [] };
    }
    if (kindOfQuestion === "cell") {
      return { cells: [{ at: Object.fromEntries(cell.map(([name, control, domain]) => [name, domain.kind === "categories" || isDate(domain) ? cellValue(control, domain) : (typed(control) ?? "")])) }] };
    }
    const fields = {
      count: () => ({}),
      people: () => ({ people: true }),
      fraction: () => ({ fraction: true }),
      rate: () => ({ rate: hits.text(), group_by: ticked(grouped) }),
      groups: () => ({ group_by: groups.values() }),
      top: () => ({ group_by: groups.values(), top: typed(most) }),
      people_groups: () => ({ people: true, group_by: groups.values() }),
      repeaters: () => ({ people: true, min_rows: typed(least) }),
      person_sum: () => ({ person_sum: added.value, bound: typed(bound) }),
      texts: () => ({ group_by: [texts.value, ...grouped.values()] }),
      text_people: () => ({ people: true, group_by: [texts.value, ...grouped.values()] }),
      sum: () => ({ sum: added.value }),
      mean: () => ({ mean: added.value }),
    };
    const statistic = () => ({ [kindOfQuestion]: RANKS.includes(kindOfQuestion) ? ordered.value : added.value, q: parts.share.hidden ? undefined : typedNumbers(share), group_by: ticked(grouped) });
    const rows = where.text() || (["count", "fraction"].includes(kindOfQuestion) ? "TRUE" : undefined);
    return given({ ...(fields[kindOfQuestion] ?? statistic)(), where: rows, alpha: typedIn("alpha", alpha), threshold: typedIn("threshold", threshold), max_price: typedIn("limit", limit) });
  }

  function problem() {
    switch (form.value) {
      case "rate":
        return hits.text() ? hits.problem() || where.problem() : "Add a condition whose share to ask for.";
      case "top":
      case "people_groups":
      case "groups":
        return groups.values().length ? where.problem() : "Tick at least one attribute to group by.";
      case "person_sum":
        return bound.value.trim() ? where.problem() : "Give a public bound of one person's sum.";
      case "choice":
        return choices.value ? "" : `No attribute of this stream has 2 to ${MOST_CANDIDATES} values to choose from; send candidates of your own to Kafka.`;
      case "cell":
        return "";
      case "iqr":
        if (own[ordered.value].kind === "categories") {
          return "Categories have no distance: ask for a quantile.";
        }
      // falls through
      case "quantile":
      case "variance":
      case "stddev":
        return grouped.values().includes(RANKS.includes(form.value) ? ordered.value : added.value) ? "Group by another attribute." : where.problem();
      default:
        return where.problem();
    }
  }

  form.addEventListener("change", show);
  show();
  return {
    element,
    value,
    takesAlpha,
    answers: (name) => offered.includes(name),
    title: () => titleOf(form.value),
    problem,
  };
}

/** The value of a cell's control: a number for a part of a date, else a text. */
function cellValue(control, domain) {
  return typeof named(domain)[0] === "number" ? typed(control) : control.value;
}

/** The number of values or bins of a domain. */
function size(domain) {
  switch (domain.kind) {
    case "date":
    case "timestamp":
      return cellsOf(domain).length;
    case "categories":
      return domain.values.length;
    case "integers":
      return domain.maximum - domain.minimum + 1;
    case "decimal":
      return Math.round((domain.maximum - domain.minimum) / domain.step) + 1;
    default:
      return domain.edges.length - 1;
  }
}

/** All values of a domain; for bins, their lower edges. */
function named(domain) {
  switch (domain.kind) {
    case "date":
    case "timestamp":
      return cellsOf(domain);
    case "categories":
      return domain.values;
    case "integers":
      return Array.from({ length: size(domain) }, (_, index) => domain.minimum + index);
    case "decimal":
      return Array.from({ length: size(domain) }, (_, index) => Number((domain.minimum + index * domain.step).toFixed(9)));
    default:
      return domain.edges.slice(0, -1);
  }
}

/** A control for one value of an attribute: a list, or a number field if the list would be long. */
function valueOf(name, domain) {
  if (isNumeric(domain) && size(domain) > MOST_CANDIDATES) {
    return numberInput({ value: String(domain.minimum), "aria-label": name, title: `${domain.minimum} to ${domain.maximum}` });
  }
  if (isDate(domain) && !size(domain)) {
    return textInput({ placeholder: `${domain.minimum}T00Z`, "aria-label": name });
  }
  return select(named(domain).map((one) => [String(one), String(one)]), "", { "aria-label": name });
}

const MOST_NAME = 128; // most characters of a candidate's name

function candidateName(text, place) {
  return text && text.length <= MOST_NAME ? text : `value ${place + 1}: ${text ? `${text.slice(0, MOST_NAME - 20)}…` : "empty"}`;
}

/** Return a candidate for each value or bin of an attribute; values outside the edges count in the first or last bin. */
function candidates(attribute, domain) {
  const name = quoted(attribute);
  const last = size(domain) - 1;
  return named(domain).map((one, place) => {
    if (domain.kind !== "bins") {
      return { name: candidateName(String(one), place), where: `${name} = ${typeof one === "number" ? one : literal(one)}` };
    }
    const above = domain.edges[place + 1];
    const sides = [...(place > 0 ? [`${name} >= ${one}`] : []), ...(place < last ? [`${name} < ${above}`] : [])];
    return { name: `[${one}, ${above}${place < last ? ")" : "]"}`, where: sides.join(" AND ") };
  });
}
