// Registers a source; shows the declaration and the request's JSON before it is sent.

import { explain, send } from "../api.js";
import { confirm, receiptLine } from "../confirm.js";
import { link, make, setText, tableHead } from "../dom.js";
import { enableAgain, flag, given, jsonBlock, labelled, latest, numberInput, requestId, select, textInput, typed } from "../forms.js";
import { amount, count, plural } from "../format.js";
import { afterPause, card } from "../parts.js";
import { route } from "../routes.js";
import { domainEditor } from "./domain.js";
import { topicForm } from "./topic_form.js";

const KINDS = [
  ["table", "a table of people"],
  ["values", "values that producers send"],
  ["records", "records that people send themselves"],
  ["events", "a live topic of people's events"],
];
const KEPT = "sotto.register"; // the form's entries, kept in this tab until the source is registered
const DECLARED = new Set(["table", "events"]);
const NEIGHBORS_HINT = "what stays hidden: whether a person is in the data, or only a person's values, if the number of people is public";
const ACCOUNTANTS_HINT = "how the charges of all streams add up; zCDP allows more answers, and needs a δ";
const NEIGHBORS = [["add-remove", "one person more or less"], ["replace", "one person exchanged for another"]];
const ACCOUNTANTS = [["pure", "ε and δ added up"], ["zcdp", "zCDP: ρ, for Gaussian noise"]];
const ENGINES = [["memory", "memory"], ["duckdb", "DuckDB, on local disk"]];

const READ_PARTS = "Sotto reads only the names and types of the first 1,024 columns (the first line of a CSV file, within its first 64 KiB; the schema of a Parquet file, a Delta table or a database) and the file TABLE.schema.json beside the table, if there is one. The first line of a CSV file is shown, because it has the names: in a file without names this shows a row. No other cell is shown. Needs an operator's token, and SOTTO_TABLE_ROOTS of the monitor.";

export function registerView({ session }) {
  const previewSoon = afterPause(() => {
    isTouched = true;
    preview();
  });
  const name = textInput({ maxlength: "128", placeholder: "patients" });
  const kind = select(KINDS);
  const neighbors = select(NEIGHBORS);
  const epsilon = numberInput({ value: "4" });
  const delta = numberInput({ placeholder: "0" });
  const accountant = select(ACCOUNTANTS);
  const population = textInput({ maxlength: "128", placeholder: "none" });
  const renews = textInput({ maxlength: "40", placeholder: "never, or 30d, 12h" });
  const path = textInput({ maxlength: "4096", placeholder: "/data/patients.parquet" });
  const view = make("textarea", { rows: "4", spellcheck: "false", maxlength: "16384", placeholder: "SELECT d.aircraft, a.state FROM departures AS d JOIN airports AS a ON a.code = d.origin" });
  const tables = make("textarea", { rows: "4", spellcheck: "false", maxlength: "65536", placeholder: '{"departures": {"path": …, "person": …, "columns": {…}},\n "airports": {"path": …, "key": ["code"], "columns": {"code": "text"}}}' });
  const person = textInput({ maxlength: "128", placeholder: "none" });
  const contribution = numberInput({ placeholder: "1" });
  const columns = textInput({ maxlength: "4096", placeholder: "month = visited, weekday = visited" });
  const engine = select(ENGINES);
  const sensitivity = numberInput({ value: "1" });
  const grid = numberInput({ value: "1" });
  const minimum = numberInput({ placeholder: "none" });
  const maximum = numberInput({ placeholder: "none" });
  const contributions = numberInput({ value: "1" });
  const domain = domainEditor(() => edited());
  const topic = topicForm();
  const related = labelled("Neighbors differ in", neighbors, NEIGHBORS_HINT);
  const proposed = make("span", { class: "hint", role: "status" });
  const proposeButton = make("button", { type: "button", onclick: () => proposeAttributes() }, "Propose attributes");
  const parts = {
    table: [
      labelled("File of the table", path, "as the services see it, below SOTTO_TABLE_ROOTS; a folder with / at its end, or an address in S3 or PostgreSQL"),
      make("div", { class: "form-field" }, proposeButton, make("span", { class: "hint" }, READ_PARTS), proposed),
      make(
        "details",
        { class: "wide" },
        make("summary", {}, "Instead of one file: a view that joins several tables"),
        labelled("View", view, "one SELECT, with JOINs to lookup tables by their keys and between tables of people on the person"),
        labelled("Tables of the view", tables, "as JSON: of each table its path, its person or (if it is public) its key, and the kinds of the columns in expressions: text, integer, number, boolean, date"),
      ),
      labelled("Column of persons", person, "identifies the person of a row; empty: each row is one person"),
      labelled("Rows of one person", contribution, "largest number that counts, if people have several"),
      labelled("Columns of attributes", columns, "attribute = column, if the names differ"),
      labelled("Counted in", engine, "DuckDB for tables larger than the workers' memory"),
    ],
    events: topic.elements,
    values: [
      labelled("Sensitivity", sensitivity, "largest change of a value by one person"),
      labelled("Grid", grid, "values are rounded to multiples of it"),
      labelled("Minimum", minimum),
      labelled("Maximum", maximum),
    ],
    records: [labelled("Events of one person", contributions, "most events that one stream accepts")],
  };
  const problem = make("p", { class: "outcome", role: "status", "data-level": "refused", hidden: true });
  const declaration = make("div", { class: "declared" }, make("p", { class: "quiet" }, "Fill in the form: this shows what it declares, in words. The form reads no row of the table."));
  const json = jsonBlock("Request");
  const registerButton = make("button", { type: "submit", class: "solid" }, "Register source…");
  const confirmed = flag("Its people are in no other source, or only in sources of this population");
  const unticked = make("p", { class: "outcome wide", role: "alert", "data-level": "refused", hidden: true }, "Tick the box: the ledger cannot know who is in another source.");
  const request = requestId();
  let isTouched = false; // the empty form is no mistake yet
  let entered = null; // the definition as of the last edit

  const form = make(
    "form",
    { class: "sheet", novalidate: true, oninput: () => edited(), onchange: () => edited() },
    labelled("Name", name),
    labelled("Kind", kind),
    related,
    labelled("Budget ε", epsilon, "privacy loss of all streams together"),
    Object.values(parts).flat(),
    domain.element,
    make(
      "details",
      { class: "wide" },
      make("summary", {}, "Advanced: δ, accounting, population, renewal"),
      make(
        "div",
        { class: "sheet" },
        labelled("Budget δ", delta, "probability that the bound of ε does not hold; needed by zCDP"),
        labelled("Added up by", accountant, ACCOUNTANTS_HINT),
        labelled("Population", population, "for sources over the same people; its budget is charged as well"),
        labelled("Budget renews every", renews, "days or hours, for example 30d; empty: never"),
      ),
    ),
    confirmed.element,
    unticked,
    registerButton,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    register();
  });
  confirmed.control.addEventListener("change", () => {
    unticked.hidden = true;
  });
  kind.addEventListener("change", show);

  function show() {
    for (const [one, shown] of Object.entries(parts)) {
      shown.forEach((part) => {
        part.hidden = one !== kind.value;
      });
    }
    related.hidden = kind.value === "records";
    domain.element.hidden = !DECLARED.has(kind.value);
  }

  const controls = () => [...form.querySelectorAll("input, select, textarea")];

  function keep() {
    // A user and a password in an address are refused, and not kept.
    const values = controls().map(({ type, value, checked }) => (type === "checkbox" ? checked : /:\/\/[^/\s]*@/.test(value) ? "" : value));
    sessionStorage.setItem(KEPT, JSON.stringify({ rows: domain.count(), values }));
  }

  function restore() {
    const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
    if (kept !== null) {
      isTouched = true;
      domain.replace(Array(kept.rows).fill(null));
      controls().forEach((control, index) => {
        control[control.type === "checkbox" ? "checked" : "value"] = kept.values[index];
        control.dispatchEvent(new Event("change"));
      });
    }
  }

  // The shown declaration belongs to the previous input, as does one on its way: neither must be registered.
  // A click on the button first ends the editing of a field: this change event brings nothing new.
  function outdatePreview() {
    const content = JSON.stringify(source());
    if (content !== entered) {
      entered = content;
      preview.outdate();
      registerButton.disabled = true;
    }
  }

  function edited() {
    keep();
    outdatePreview();
    previewSoon();
  }

  async function proposeAttributes() {
    proposeButton.disabled = true;
    setText(proposed, "Reading the names of the columns…");
    try {
      const found = await send("/api/proposals", session.token, { method: "POST", body: { path: path.value.trim() } });
      const fitting = found.attributes.filter((one) => one.domain !== null && one.name !== person.value.trim());
      domain.replace(fitting);
      keep();
      outdatePreview();
      const open = fitting.filter((one) => one.missing.length).length;
      const others = found.attributes.filter((one) => one.reason !== null).map((one) => `${one.name}: ${one.reason}`);
      setText(proposed, [`${plural(fitting.length, "attribute")} proposed; to be declared by you, with ranges or values: ${open}. Remove attributes that no question needs.`, found.remark, ...others].filter(Boolean).join(" "));
      isTouched = false; // what is left to declare stands at the attributes, and is no mistake yet
      preview();
    } catch (error) {
      setText(proposed, explain(error.problem ?? { message: error.message }, amount));
    } finally {
      enableAgain(proposeButton);
    }
  }

  function source() {
    const common = {
      source: name.value.trim(),
      kind: kind.value,
      neighbors: kind.value === "records" ? "replace" : neighbors.value,
      epsilon: typed(epsilon),
      delta: typed(delta),
      accountant: accountant.value,
      population: population.value.trim() || undefined,
      renews: renews.value.trim() || undefined,
    };
    const own = {
      table: { path: path.value.trim() || (view.value.trim() ? undefined : ""), view: viewOf(view.value, tables.value), person: person.value.trim() || undefined, contribution: typed(contribution), attributes: domain.value(), texts: domain.texts(), columns: columnsOf(columns.value), engine: engine.value === "memory" ? undefined : engine.value },
      values: { sensitivity: typed(sensitivity), grid: typed(grid), minimum: typed(minimum), maximum: typed(maximum) },
      records: { contributions: typed(contributions) },
      events: { ...topic.value(), attributes: { ...domain.value(), ...domain.texts() } },
    };
    return given({ ...common, ...own[kind.value] });
  }

  /** Return what the form lacks before it is worth a request; empty if nothing. */
  function findMissing() {
    const { path: file, view: joined, topic: live, attributes } = source();
    if (!name.value.trim()) {
      return "name: give the source a name";
    }
    if (!DECLARED.has(kind.value)) {
      return "";
    }
    if (kind.value === "table" ? !file && !joined : !live) {
      return kind.value === "table" ? "path: name the table's file" : "topic: name the live topic";
    }
    const isEmpty = !Object.keys({ ...attributes, ...domain.texts() }).length;
    return kind.value === "table" && isEmpty ? "attributes: declare at least one" : domain.problem();
  }

  const body = () => {
    const declared = source();
    return { kind: "register", request: request.of(declared), source: declared };
  };

  const preview = latest(async (isLatest) => {
    json.show(body());
    try {
      const missing = findMissing();
      if (missing) {
        throw new Error(missing);
      }
      const declared = await send("/api/declarations", session.token, { method: "POST", body: source() });
      if (isLatest()) {
        problem.hidden = true;
        declaration.hidden = registerButton.disabled = false;
        declaration.replaceChildren(...describe(declared));
      }
    } catch (error) {
      if (isLatest()) {
        problem.hidden = !isTouched;
        declaration.hidden = registerButton.disabled = true;
        setText(problem, explain(error.problem ?? { message: error.message }, amount));
      }
    }
  });

  /** The ledger refuses another declaration under the id of a request that it has decided. */
  function renew() {
    request.renew();
    json.show(body());
  }

  function register() {
    unticked.hidden = confirmed.control.checked;
    if (!confirmed.control.checked) {
      confirmed.control.focus();
      return;
    }
    const sent = body();
    confirm({
      session,
      verb: "Register",
      subject: "source",
      name: sent.source.source,
      effect: "Its budget and its declaration cannot be changed later, and the name cannot be used again.",
      async perform(token) {
        request.keep();
        const receipt = await send("/api/sources", token, { method: "POST", body: sent });
        return `It is registered; streams can be opened on it.\n${receiptLine(receipt)}`;
      },
      onRefused: renew,
      onDone() {
        sessionStorage.removeItem(KEPT);
        renew();
        location.hash = route("sources", [sent.source.source]).slice(1);
      },
    });
  }

  show();
  restore();
  outdatePreview();
  preview();
  return {
    element: make(
      "div",
      { class: "view" },
      make("h1", {}, "Register a source"),
      make("p", { class: "quiet" }, "A source has a privacy budget. Everything declared here is public. ", link(route("sources"), "All sources")),
      make("div", { class: "columns" }, card("Definition", form), make("div", { class: "stack" }, card("Declaration", problem, declaration), card("Request", json.element))),
    ),
    title: "Register a source",
    connections: [{ views: ["overview"] }],
    show() {},
    close() {},
  };
}

/** Return elements that show a source's declaration. */
export function describe({ attributes, cells, neighbors, total, remarks }) {
  const rows = attributes.map(({ name, kind, size, outside }) =>
    make("tr", {}, make("th", { scope: "row", class: "name" }, name), make("td", {}, kind), make("td", { class: "figure", "data-short": "values" }, count(size)), make("td", {}, outside)),
  );
  return [
    make("p", {}, make("strong", {}, `Budget ${amount(total)}`)),
    make("p", {}, `Neighbors: ${neighbors}.`),
    attributes.length ? make("div", { class: "table-frame" }, make("table", { class: "plain stacked", "aria-label": "Declared attributes" }, tableHead("Attribute", "Kind", "Values", "Others"), make("tbody", {}, rows))) : null,
    cells === null ? null : make("p", {}, `${count(cells)} cells of all attributes together.`),
    ...remarks.map((text) => make("p", { class: "quiet" }, `${/^[a-z]+\b/.test(text) ? text[0].toUpperCase() + text.slice(1) : text}.`)),
  ].filter(Boolean);
}

/** The view, or undefined without one. Tables that are no JSON are sent as text: the API's answer names the field. */
function viewOf(text, tables) {
  if (!text.trim()) {
    return undefined;
  }
  try {
    return { select: text, tables: JSON.parse(tables || "{}") };
  } catch {
    return { select: text, tables };
  }
}

/** The column of each attribute in "attribute = column, …", or undefined if there is none. */
function columnsOf(text) {
  const pairs = text.split(",").map((part) => part.split("=").map((name) => name.trim()));
  const named = pairs.filter((pair) => pair.length === 2 && pair[0] && pair[1]);
  return named.length ? Object.fromEntries(named) : undefined;
}
