// A predicate of conditions on declared attributes, combined with AND or OR.

import { make, setText } from "../dom.js";
import { cellsOf, isDate, partOf } from "../calendar.js";
import { labelled, numberInput, select, textInput } from "../forms.js";

const MOST_LISTED = 200; // categories or edges in a list
const SIGNS = [["=", "is"], ["<>", "is not"], ["<", "below"], ["<=", "at most"], [">", "above"], [">=", "at least"], ["BETWEEN", "from … to"]];
const FOR_CATEGORIES = [["=", "is"], ["<>", "is not"], ["IN", "is one of"], ["NOT IN", "is none of"]];
const ORDERED = [["<", "below"], ["<=", "at most"], [">", "above"], [">=", "at least"]];
const FOR_BINS = [["<", "below"], [">=", "at least"]];

const RESERVED = new Set(["and", "or", "not", "in", "between", "true", "false"]);

/** Whether values can be added up and compared with any number. */
export function isNumeric(domain) {
  return domain.kind === "integers" || domain.kind === "decimal";
}

/** Whether values have an order, so that quantiles can be asked for. */
export function isOrdered(domain) {
  return isNumeric(domain) || domain.kind === "bins" || isDate(domain) || Boolean(domain.ordered);
}

export function quoted(name) {
  return /^[a-z_][a-z0-9_]*$/.test(name) && !RESERVED.has(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

export function literal(text) {
  return `'${text.replaceAll("'", "''")}'`;
}

/** `text()` is the predicate, empty without conditions; `problem()` is the first condition's problem; `onChange()` is called after a condition is added or removed. */
export function whereBuilder(attributes, onChange, { required = false, legend = "Rows where" } = {}) {
  const rows = [];
  const list = make("div", { class: "conditions" });
  const together = select([["AND", "all conditions hold"], ["OR", "any condition holds"]], "AND", { "aria-label": "How conditions are combined" });
  const add = make("button", { type: "button", onclick: () => append().focus() }, "Add condition");
  const written = make("code", { class: "predicate" });
  const none = make("span", { class: "quiet" }, required ? "Add a condition." : "All rows.");
  const element = make("fieldset", { class: "where" }, make("legend", {}, legend), together, list, none, make("div", { class: "line" }, add, written));

  function append() {
    const row = conditionRow(attributes, () => {
      rows.splice(rows.indexOf(row), 1);
      row.element.remove();
      changed();
    });
    rows.push(row);
    list.append(row.element);
    changed();
    return row;
  }

  function text() {
    const parts = rows.map((row) => row.text()).filter(Boolean);
    return parts.length > 1 ? parts.map((one) => `(${one})`).join(` ${together.value} `) : (parts[0] ?? "");
  }

  function changed() {
    together.hidden = rows.length < 2;
    none.hidden = rows.length > 0;
    onChange();
  }

  const write = () => setText(written, text());
  element.addEventListener("input", write);
  element.addEventListener("change", write);
  changed();
  if (required) {
    append();
  }
  return {
    element,
    text() {
      write();
      return text();
    },
    problem: () => rows.map((row) => row.problem()).find(Boolean) ?? "",
  };
}

function conditionRow(attributes, onRemove) {
  const attribute = select(Object.keys(attributes).map((name) => [name, name]));
  const place = make("div", { class: "condition-value" });
  let operator = null;
  let read = () => "";
  let wrong = () => "";
  const remove = make("button", { type: "button", class: "plain-button", onclick: onRemove }, "Remove");
  const element = make("div", { class: "condition", role: "group", "aria-label": "Condition" }, labelled("Attribute", attribute), place, remove);

  function show() {
    const domain = attributes[attribute.value];
    const signs = domain.kind === "categories" ? (domain.ordered ? [...FOR_CATEGORIES, ...ORDERED] : FOR_CATEGORIES) : domain.kind === "bins" ? FOR_BINS : SIGNS;
    operator = select(signs);
    operator.addEventListener("change", () => values(domain));
    place.replaceChildren(labelled("Comparison", operator), make("div", { class: "values" }));
    values(domain);
  }

  function values(domain) {
    const holder = place.lastElementChild;
    const name = quoted(attribute.value);
    const sign = operator.value;
    wrong = () => "";
    if (domain.kind === "categories") {
      const several = sign === "IN" || sign === "NOT IN";
      const offered = domain.values.slice(0, MOST_LISTED).map((one) => [one, one]);
      const control = select(offered, several ? "" : offered[0][0], several ? { multiple: true, size: Math.min(offered.length, 6) } : {});
      holder.replaceChildren(labelled(several ? "Values" : "Value", control, domain.values.length > MOST_LISTED ? `the first ${MOST_LISTED} values; use SQL for others` : ""));
      const chosen = () => [...control.selectedOptions].map((one) => literal(one.value));
      wrong = () => (chosen().length ? "" : `Condition on '${attribute.value}': no value is chosen; choose one or more, or remove the condition.`);
      read = () => (several ? (chosen().length ? `${name} ${sign} (${chosen().join(", ")})` : "") : `${name} ${sign} ${chosen()[0]}`);
      return;
    }
    if (domain.kind === "bins") {
      const control = select(domain.edges.slice(0, MOST_LISTED).map((one) => [String(one), String(one)]));
      holder.replaceChildren(labelled("Edge", control));
      read = () => `${name} ${sign} ${control.value}`;
      return;
    }
    const between = sign === "BETWEEN";
    const part = partOf(domain);
    if (isDate(domain) && !part) {
      const [first, second] = [domain.minimum, domain.maximum].map((day) => textInput({ value: day }));
      const range = cellsOf(domain).length ? `a ${domain.granularity} or a longer period from ${domain.minimum} to ${domain.maximum}, as 2024-03` : "an hour or a longer period, as 2024-03-31T14Z";
      wrong = () => ((between ? [first, second] : [first]).every((control) => control.value.trim()) ? "" : `Condition on '${attribute.value}': a date is missing.`);
      holder.replaceChildren(labelled(between ? "From" : "Value", first, range), ...(between ? [labelled("To", second)] : []));
      const texts = () => [first, second].map((control) => literal(control.value.trim()));
      read = () => (between ? `${name} BETWEEN ${texts().join(" AND ")}` : `${name} ${sign} ${texts()[0]}`);
      return;
    }
    const [least, most] = part ?? [domain.minimum, domain.maximum];
    const range = `${least} to ${most}`;
    const first = numberInput({ value: String(least) });
    const second = numberInput({ value: String(most) });
    wrong = () =>
      (between ? [first, second] : [first])
        .map((control) => control.value.trim())
        .filter((text) => text === "" || !Number.isFinite(Number(text)))
        .map((text) => `Condition on '${attribute.value}': ${text ? `'${text}' is not a number` : "a number is missing"}; give a number from ${range}.`)[0] ?? "";
    holder.replaceChildren(labelled(between ? "From" : "Value", first, range), ...(between ? [labelled("To", second)] : []));
    read = () => (between ? `${name} BETWEEN ${first.value.trim()} AND ${second.value.trim()}` : `${name} ${sign} ${first.value.trim()}`);
  }

  attribute.addEventListener("change", show);
  show();
  return { element, focus: () => attribute.focus(), text: () => read(), problem: () => wrong() };
}
