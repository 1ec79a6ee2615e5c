// The declared attributes of a table, one row each: categories, integers, decimals, dates, bins or private text.

import { make } from "../dom.js";
import { plural } from "../format.js";
import { given, labelled, listed, numberInput, select, textInput, typed } from "../forms.js";

const KINDS = [["integers", "integers"], ["decimal", "decimals"], ["date", "dates"], ["timestamp", "timestamps"], ["categories", "categories"], ["bins", "bins"], ["text", "text, private"]];
const GRANULARITIES = ["day", "week", "month", "quarter", "year", "weekday", "month-of-year"].map((one) => [one, one]);
const OF_TIMES = [...GRANULARITIES, ["hour", "hour"], ["hour-of-day", "hour-of-day"]];
const REQUIRED = { integers: ["minimum", "maximum"], decimal: ["minimum", "maximum", "step"], date: ["minimum", "maximum"], timestamp: ["minimum", "maximum"], categories: ["values"], bins: ["edges"], text: [] };
const PARTS_OF_DATES = ["weekday", "month-of-year", "hour-of-day"]; // they have no ends
const OUTSIDE = [["clamp", "nearer end"], ["reject", "left out"]];

/** The editor; `onChange()` is called after the user adds or removes a row. */
export function domainEditor(onChange) {
  const rows = [];
  const list = make("div", { class: "attributes" });
  const add = make("button", { type: "button", onclick: () => addRow() }, "Add attribute");
  const element = make("fieldset", { class: "domain" }, make("legend", {}, "Attributes"), list, add);

  function append() {
    const row = attributeRow(() => {
      const place = rows.indexOf(row);
      rows.splice(place, 1);
      row.element.remove();
      (rows[place] ?? rows.at(-1))?.focus();
      onChange();
    });
    rows.push(row);
    list.append(row.element);
    return row;
  }
  append();

  function addRow() {
    append().focus();
    onChange();
  }

  const declared = (isText) => {
    const named = rows.filter((row) => row.name()).map((row) => [row.name(), row.value()]);
    return Object.fromEntries(named.filter(([, domain]) => (domain.kind === "text") === isText));
  };

  return {
    element,
    /** The attributes with declared values, and those of private text. */
    value: () => declared(false),
    texts: () => declared(true),
    count: () => rows.length,
    /** Replace the rows by proposed attributes, whose missing fields stay empty; null is an empty row. */
    replace(proposed) {
      rows.splice(0).forEach((row) => row.element.remove());
      proposed.forEach((one) => {
        const row = append();
        one && row.fill(one);
      });
    },
    /** Return the problem of the rows, a repeated name or fields to be declared; empty without one. */
    problem() {
      const names = rows.map((row) => row.name()).filter(Boolean);
      const twice = names.find((name, index) => names.indexOf(name) !== index);
      if (twice) {
        return `two attributes are called '${twice}'`;
      }
      const open = rows.filter((row) => row.name() && row.missing().length);
      const others = open.length > 1 ? `; ${plural(open.length - 1, "more attribute")} to be declared` : "";
      return open.length ? `${open[0].name()}: declare ${open[0].missing().join(", ")}${others}` : "";
    },
  };
}

function attributeRow(onRemove) {
  const name = textInput({ maxlength: "128", placeholder: "age" });
  const kind = select(KINDS);
  const minimum = numberInput({ placeholder: "0" });
  const maximum = numberInput({ placeholder: "99" });
  const lowest = numberInput({ placeholder: "0" });
  const highest = numberInput({ placeholder: "10000" });
  const step = numberInput({ placeholder: "0.01" });
  const dates = { granularity: select(GRANULARITIES), first: textInput({ placeholder: "2024-01-01" }), last: textInput({ placeholder: "2024-12-31" }) };
  const times = { granularity: select(OF_TIMES), first: textInput({ placeholder: "2024-01-01" }), last: textInput({ placeholder: "2024-12-31" }), zone: textInput({ placeholder: "UTC" }) };
  const text = (control) => control.value.trim() || undefined;
  const range = ({ granularity, first, last }) => [labelled("Cells", granularity), labelled("First day", first, "not for a part of a date, such as weekday"), labelled("Last day", last)];
  const values = make("textarea", { rows: "2", spellcheck: "false", placeholder: "F, M" });
  const other = textInput({ placeholder: "none" });
  const ordered = select([["", "no"], ["yes", "yes, from the least to the greatest"]]);
  const edges = textInput({ placeholder: "0, 10, 100" });
  const longest = numberInput({ placeholder: "64" });
  const outside = select(OUTSIDE);
  const parts = {
    integers: [labelled("Minimum", minimum), labelled("Maximum", maximum)],
    decimal: [labelled("Minimum", lowest), labelled("Maximum", highest), labelled("Step", step, "values between are rounded to it")],
    date: range(dates),
    timestamp: [...range(times), labelled("Time zone", times.zone, "where days begin, as Europe/Berlin")],
    categories: [labelled("Values", values, "separated by commas or line breaks"), labelled("Any other value counts as", other, "if empty, rows with other values are left out, and events are refused"), labelled("Ordered", ordered)],
    bins: [labelled("Edges", edges, "ascending, separated by commas")],
    text: [labelled("Longest text in bytes", longest, "longer texts are in no group; unknown groups alone may group by it")],
  };
  const about = make("p", { class: "hint", hidden: true });
  const beyond = labelled("Outside the range", outside);
  const remove = make("button", { type: "button", class: "plain-button", onclick: onRemove }, "Remove");
  let known = []; // what the table's description says of a proposed attribute
  let isIncomplete = false; // a proposal that leaves fields to be declared
  const element = make("div", { class: "attribute", role: "group", "aria-label": "Attribute", oninput: () => showHint() }, labelled("Name", name), labelled("Kind", kind), Object.values(parts).flat(), beyond, about, remove);
  const show = () => {
    for (const [one, shown] of Object.entries(parts)) {
      shown.forEach((part) => {
        part.hidden = one !== kind.value;
      });
    }
    beyond.hidden = ["categories", "text"].includes(kind.value);
  };
  /** Show what is known of the attribute, and which fields of its kind are still empty. */
  function showHint() {
    const left = isIncomplete ? row.missing() : [];
    about.textContent = [...known, left.length ? `to be declared: ${left.join(", ")}` : ""].filter(Boolean).join("; ");
    about.hidden = !about.textContent;
  }
  kind.addEventListener("change", show);
  show();
  const row = {
    element,
    focus: () => name.focus(),
    name: () => name.value.trim(),
    /** Return the labels of the kind's required fields that are still empty. */
    missing() {
      const domain = row.value();
      const isEmpty = (field) => domain[field] === undefined || domain[field].length === 0;
      const labels = ["date", "timestamp"].includes(domain.kind) ? { minimum: "first day", maximum: "last day" } : {};
      return PARTS_OF_DATES.includes(domain.granularity) ? [] : REQUIRED[domain.kind].filter(isEmpty).map((field) => labels[field] ?? field);
    },
    /** Fill in a proposed attribute; the hint has what the table's description says of it. */
    fill({ name: proposed, domain, missing, unit, description }) {
      const shown = (value) => (value === undefined ? "" : String(value));
      name.value = proposed;
      kind.value = domain.kind;
      minimum.value = lowest.value = dates.first.value = times.first.value = shown(domain.minimum);
      maximum.value = highest.value = dates.last.value = times.last.value = shown(domain.maximum);
      step.value = shown(domain.step);
      values.value = (domain.values ?? []).join("\n");
      edges.value = (domain.edges ?? []).join(", ");
      known = [description, unit ? `in ${unit}` : missing.length && domain.kind !== "categories" ? "unit: not described" : ""];
      isIncomplete = missing.length > 0;
      show();
      showHint();
    },
    value() {
      switch (kind.value) {
        case "integers":
          return given({ kind: "integers", minimum: typed(minimum), maximum: typed(maximum), outside: outside.value });
        case "decimal":
          return given({ kind: "decimal", minimum: typed(lowest), maximum: typed(highest), step: typed(step), outside: outside.value });
        case "date":
        case "timestamp": {
          const { granularity, first, last, zone } = kind.value === "date" ? dates : times;
          return given({ kind: kind.value, granularity: granularity.value, minimum: text(first), maximum: text(last), zone: zone && text(zone), outside: outside.value });
        }
        case "categories":
          return given({ kind: "categories", values: listed(values), other: other.value.trim() || undefined, ordered: ordered.value ? true : undefined });
        case "text":
          return given({ kind: "text", max_length: typed(longest) });
        default:
          return { kind: "bins", edges: listed(edges).map((one) => (Number.isFinite(Number(one)) ? Number(one) : one)), outside: outside.value };
      }
    },
  };
  return row;
}
