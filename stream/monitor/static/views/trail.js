// The audit trail: requests, decisions and events, and the state of its chain.

import { explain, open, parameters } from "../api.js";
import { KeyedList, download, link, make, setAttribute, setText, tableHead } from "../dom.js";
import { amount, count, mechanism, plural, time } from "../format.js";
import { afterPause, card, emptyState } from "../parts.js";
import { route } from "../routes.js";
import { choice, searchField } from "./filters.js";
import { pager } from "./pager.js";

const LIMIT = 50;
const HEADS = ["No.", "Time", "Action", "Subject", "By", "Outcome", "Left", "Request"];
const ACTIONS = ["register", "register_population", "join", "allot", "open", "extend", "close", "halt", "halt_source", "refresh", "exhausted", "halted", "closed", "renewed", "beginning", "standing", "restored"];
const OUTCOMES = ["registered", "opened", "closing", "halted", "refused"];
const FIELDS = ["search", "source", "stream", "population", "analyst", "by", "action", "outcome"];

function entryRow() {
  const cells = HEADS.map((name) => make("td", { class: `cell-${name.toLowerCase().replace(/\W+/g, "")}`, "data-label": name }));
  return {
    element: make("tr", {}, cells),
    update(row) {
      setText(cells[0], count(row.number));
      setText(cells[1], time(row.time));
      setText(cells[2], [row.action.replace("_", " "), row.mechanism && `(${mechanism(row.mechanism)})`].filter(Boolean).join(" "));
      cells[3].replaceChildren(...about(row));
      setText(cells[4], requester(row));
      setText(cells[5], outcome(row));
      setAttribute(cells[5], "data-low", row.outcome === "refused");
      // A refusal's reason says what is left of the budget that cannot pay; that may be the population's.
      setText(cells[6], row.left && row.outcome !== "refused" ? amount(row.left, true) : "–");
      setText(cells[7], row.request ?? "–");
      cells.forEach((cell) => cell.toggleAttribute("data-empty", cell.textContent === "–"));
    },
  };
}

function about({ allotment, stream, source, population }) {
  const parts = [
    allotment,
    stream && link(route("streams", [stream]), ...breakable(stream)),
    source && link(route("sources", [source]), source),
    population && link(route("people", [population]), population),
  ].filter(Boolean);
  return parts.length ? parts.flatMap((part, index) => (index ? [" · ", part] : [part])) : ["–"];
}

/** A name that may break after its slashes. */
function breakable(name) {
  return name.split(/(?<=\/)/).flatMap((part, index) => (index ? [make("wbr"), part] : [part]));
}

/** The user who sent a request, and the analyst for whom it was sent. */
function requester({ by, analyst }) {
  return by && analyst && by !== analyst ? `${by} for ${analyst}` : (by ?? analyst ?? "–");
}

function outcome(row) {
  const figures = [
    row.loss,
    row.allotment && `ε ${row.epsilon}${row.delta === null ? " and the budget's δ" : row.delta ? `, δ ${row.delta}` : ""} for ${row.analysts.join(", ")}`,
    row.granted && `granted ${amount(row.granted)}`,
    row.answers && plural(row.answers, "more charged answer"),
    row.spent && `spent ${amount(row.spent)}`,
    row.refunded && (row.refunded.epsilon || row.refunded.rho) && `refunded ${amount(row.refunded)}`,
    row.asked && !row.granted && `requested ${amount(row.asked)}`,
  ].filter(Boolean);
  return [row.outcome, ...figures, row.reason].filter(Boolean).join("; ") || "–";
}

export function trailView({ query, remember, session }) {
  const chosen = Object.fromEntries(FIELDS.map((name) => [name, query[name] ?? ""]));
  let offset = Number(query.offset) || 0;
  const connections = () => [{ views: ["overview", "trail"], query: { ...chosen, offset, limit: LIMIT } }];
  const change = (changes, to = 0) => {
    Object.assign(chosen, changes);
    offset = to;
    remember({ ...chosen, offset: offset || "" }, connections());
  };
  const search = searchField("Search names and ids", chosen.search, afterPause(() => change({ search: search.input.value })));
  const named = [["source", "Source"], ["stream", "Stream"], ["population", "Population"], ["by", "Requested by"], ["analyst", "Analyst"]].map(([name, label]) => {
    const field = searchField(label, chosen[name], afterPause(() => change({ [name]: field.input.value.trim() })));
    field.input.name = name;
    return field.element;
  });
  const options = (names, any) => [["", any], ...names.map((name) => [name, name.replace("_", " ")])];
  const body = make("tbody");
  const list = new KeyedList(body, entryRow);
  const pages = pager(LIMIT, (to) => change({}, to));
  const intact = make("span");
  const ending = make("span", {}, " Only ", make("code", {}, "sotto ledger verify --head"), " finds that its end is missing.");
  const chain = make("p", { class: "outcome", role: "status" }, intact, ending);
  const footnote = make("p", { class: "quiet" });
  const failure = make("p", { class: "outcome", role: "alert", "data-level": "refused", hidden: true });
  const none = emptyState("No entry matches", "The trail lists every request to the budget service with its decision.");
  none.hidden = true;
  const save = make("button", { type: "button", onclick: () => saveTrail() }, "Save as CSV");

  async function saveTrail() {
    failure.hidden = true;
    save.disabled = true;
    try {
      const response = await open(`/api/trail.csv?${parameters(chosen)}`, session.token);
      download(await response.blob(), "trail.csv");
    } catch (error) {
      failure.hidden = false;
      setText(failure, error.problem ? explain(error.problem, amount) : error.message);
    } finally {
      save.disabled = false;
    }
  }

  const filters = make(
    "div",
    { class: "filters", role: "search" },
    search.element,
    named,
    choice("Action", options(ACTIONS, "any action"), chosen.action, (value) => change({ action: value })),
    choice("Outcome", options(OUTCOMES, "any outcome"), chosen.outcome, (value) => change({ outcome: value })),
    save,
  );
  const table = make("table", { class: "plain people-table trail", "aria-label": "Entries" }, tableHead(...HEADS), body);
  const frame = make("div", { class: "table-frame" }, table);
  return {
    element: make("div", { class: "view" }, make("h1", {}, "Audit trail"), chain, card("Entries", filters, failure, pages.element, frame, none, footnote)),
    title: "Audit trail",
    connections: connections(),
    show(name, data) {
      if (name !== "trail") {
        return;
      }
      const whole = data.unread ? `The chain of the latest ${count(data.entries - data.unread)} entries is intact; ${count(data.unread)} earlier ones are still being checked.` : `The chain of ${plural(data.entries, "entry", "entries")} is intact.`;
      setText(intact, data.broken ? `The chain is broken: ${data.broken}. The trail was changed after it was written.` : whole);
      ending.hidden = data.broken !== null;
      chain.dataset.level = data.broken ? "refused" : "done";
      none.hidden = data.matching > 0;
      table.hidden = data.matching === 0;
      list.show(data.items, (row) => row.number);
      pages.update({ ...data, total: data.matching }, "entry", "entries");
      setText(footnote, `The latest ${plural(data.held, "entry is", "entries are")} listed, without notes of spending. “sotto ledger trail --export” writes the whole trail, as CSV or Parquet, and “sotto ledger verify” checks it against the ledger.`);
    },
    close() {},
  };
}
