// One question to a stream over a table: its form, its rows, and how accurate its answer must be.

import { make } from "../dom.js";
import { given, labelled, numberInput, select, ticks, typed } from "../forms.js";
import { FORMS, SPECS } from "../mechanisms.js";
import { literal, quoted, whereBuilder } from "./where.js";

const MOST_CANDIDATES = 256;

/** `value()` is the query without id and stream; `problem()` says why it cannot be asked yet. */
export function questionForm(spec, source, onChange) {
  const attributes = source.attributes;
  const kind = spec.mechanism.kind;
  const integers = Object.keys(attributes).filter((name) => attributes[name].kind === "integers");
  const summable = spec.mechanism.sums?.length ? spec.mechanism.sums : kind.endsWith("threshold") || kind === "numeric_sparse" ? [] : integers;
  const peopleAlone = spec.mechanism.people === true;
  const offered = SPECS[kind].forms.filter((form) => (peopleAlone ? ["people", "choice"].includes(form) : form !== "people" || Boolean(source.person)) && (!["sum", "mean"].includes(form) || summable.length));
  const mine = spec.mechanism.attributes ?? Object.keys(attributes);
  const own = Object.fromEntries(mine.map((name) => [name, attributes[name]]));
  const form = select(offered.map((name) => [name, FORMS[name]]));
  const added = select(summable.map((name) => [name, name]));
  const alpha = numberInput({ placeholder: "what the stream promises" });
  const threshold = numberInput({ placeholder: String(spec.mechanism.threshold ?? "") });
  const groups = ticks("Groups of", mine.map((name) => [name, name]), mine.slice(0, 1));
  const choices = select(Object.keys(attributes).filter((name) => named(attributes[name]).length > 1).map((name) => [name, name]));
  const cell = Object.entries(own).map(([name, domain]) => [name, select(named(domain).map((one) => [String(one), String(one)]), "", { "aria-label": name }), domain]);
  const where = whereBuilder(own, onChange);
  const parts = {
    added: labelled("Attribute", added),
    groups: groups.element,
    choices: labelled("Values of", choices, "each a candidate: how many rows have it"),
    cell: make("fieldset", { class: "ticks" }, make("legend", {}, "In the cell"), cell.map(([name, control]) => labelled(name, control))),
    where: where.element,
    alpha: labelled("Error at most", alpha, "optional; it is charged the least that keeps to it"),
    threshold: labelled("Threshold", threshold, "optional, public; in place of the stream's own"),
  };
  const needs = {
    count: ["where", "alpha", "threshold"],
    people: ["where", "alpha", "threshold"],
    fraction: ["where", "alpha"],
    groups: ["groups", "where", "alpha"],
    sum: ["added", "where", "alpha", "threshold"],
    mean: ["added", "where"],
    cell: ["cell"],
    choice: ["choices"],
  };
  const element = make("div", { class: "sheet" }, labelled("Ask", form), Object.values(parts));

  function show() {
    for (const [name, part] of Object.entries(parts)) {
      part.hidden = !needs[form.value].includes(name) || (name === "alpha" && !SPECS[kind].alpha) || (name === "threshold" && !("threshold" in spec.mechanism));
    }
  }

  function value() {
    const rows = where.text();
    const wanted = parts.alpha.hidden ? undefined : typed(alpha);
    const against = parts.threshold.hidden ? undefined : typed(threshold);
    const extra = { alpha: wanted, threshold: against };
    const filtered = { where: rows || undefined };
    switch (form.value) {
      case "count":
        return given({ where: rows || "TRUE", ...extra });
      case "people":
        return given({ people: true, ...filtered, ...extra });
      case "fraction":
        return given({ where: rows || "TRUE", fraction: true, alpha: wanted });
      case "groups":
        return given({ group_by: groups.values(), ...filtered, alpha: wanted });
      case "choice":
        return { candidates: named(attributes[choices.value]).slice(0, MOST_CANDIDATES).map((one) => ({ name: String(one), ...(peopleAlone ? { people: true } : {}), where: `${quoted(choices.value)} = ${typeof one === "number" ? one : literal(one)}` })) };
      case "cell":
        return { cells: [{ at: Object.fromEntries(cell.map(([name, control, domain]) => [name, domain.kind === "categories" ? control.value : Number(control.value)])) }] };
      default:
        return given({ [form.value]: added.value, ...filtered, ...(form.value === "sum" ? extra : {}) });
    }
  }

  form.addEventListener("change", show);
  show();
  return {
    element,
    value,
    title: () => FORMS[form.value],
    problem: () => (form.value === "groups" && !groups.values().length ? "Tick at least one attribute to group by." : ""),
  };
}

/** The values of a domain that can be named; of bins their lower edges. */
function named(domain) {
  switch (domain.kind) {
    case "categories":
      return domain.values;
    case "integers":
      return Array.from({ length: Math.min(domain.maximum - domain.minimum + 1, MOST_CANDIDATES) }, (_, index) => domain.minimum + index);
    default:
      return domain.edges.slice(0, -1);
  }
}
