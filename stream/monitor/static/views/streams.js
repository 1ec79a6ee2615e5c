// All streams. The server searches, filters, sorts and pages them, because there may be ten thousand.

import { make, setText } from "../dom.js";
import { count, mechanisms } from "../format.js";
import { afterPause, emptyState } from "../parts.js";
import { route } from "../routes.js";
import { openStream } from "./commands.js";
import { chip, choice, orderButton, searchField, toggles } from "./filters.js";
import { pager } from "./pager.js";
import { sortings, streamTable } from "./stream_table.js";

const LIMIT = 50;
const STATES = [["open", "open"], ["exhausted", "exhausted"], ["halted", "halted"], ["closed", "closed"]];

function read(query) {
  return {
    search: query.search ?? "",
    state: query.state ?? "",
    source: query.source ?? "",
    of: query.of ?? "",
    mechanism: query.mechanism ?? "",
    sort: query.sort ?? "stream",
    descending: query.descending === "true",
    offset: Number(query.offset) || 0,
  };
}

export function streamsView({ query, remember }) {
  const chosen = read(query);
  const connections = () => [{ views: ["overview", "streams"], query: { ...chosen, limit: LIMIT } }];
  const change = (changes) => {
    Object.assign(chosen, { offset: 0 }, changes);
    table.order(chosen);
    remember({ ...chosen, sort: chosen.sort === "stream" ? "" : chosen.sort, offset: chosen.offset || "" }, connections());
  };
  const search = searchField(chosen.of ? "Search periods: 2013-03" : "Search streams and sources", chosen.search, afterPause(() => change({ search: search.input.value })));
  const pressed = chosen.state ? chosen.state.split(",") : [];
  const states = toggles("States", STATES, pressed, (names) => change({ state: names.join(",") }));
  const kind = choice("Mechanism", [["", "any mechanism"], ...mechanisms], chosen.mechanism, (value) => change({ mechanism: value }));
  const sort = choice("Sort by", sortings, chosen.sort, (value) => change({ sort: value }), { labelled: true });
  const order = orderButton(chosen.descending, (descending) => change({ descending }));
  const source = make("a", { class: "chip", href: route("streams") }, `source ${chosen.source} ×`);
  source.hidden = !chosen.source;
  source.setAttribute("aria-label", `Show the streams of all sources, not only of ${chosen.source}`);
  const only = chip("streams", chosen.of);
  const table = streamTable({
    inPeriods: Boolean(chosen.of),
    onSort(name) {
      const descending = chosen.sort === name && !chosen.descending;
      sort.querySelector("select").value = name;
      order.set(descending);
      change({ sort: name, descending });
    },
  });
  table.order(chosen);
  const pages = pager(LIMIT, (offset) => {
    change({ offset });
    scrollTo({ top: 0 });
  });
  const none = emptyState("No stream yet", "A stream answers questions about a source at a privacy cost. Open one:", openStream());
  const unmatched = emptyState("No stream matches", "Shorten the search text or remove a filter.");
  const clear = make("p", {}, make("a", { href: route("streams") }, "Clear all filters"));
  unmatched.append(clear);
  none.hidden = unmatched.hidden = true;
  const total = make("span", { class: "quiet" });
  const element = make(
    "div",
    { class: "view" },
    make("div", { class: "head" }, make("h1", {}, "Streams ", total), make("div", { class: "head-actions" }, make("a", { class: "button", href: route("plan") }, "Plan a stream…"))),
    make("div", { class: "filters", role: "search" }, search.element, states, kind, make("span", { class: "sorting" }, sort, order.element), source, only),
    make("section", { class: "card flush", "aria-label": "Streams" }, table.element, none, unmatched),
    pages.element,
  );
  return {
    element,
    title: "Streams",
    connections: connections(),
    show(name, data) {
      if (name !== "streams") {
        return;
      }
      if (!data.items.length && data.matching) {
        change({}); // the requested page no longer exists
        return;
      }
      table.update(data.items);
      pages.update(data, chosen.of ? "period" : "stream");
      setText(total, count(data.total));
      table.element.hidden = data.items.length === 0;
      none.hidden = data.total > 0;
      unmatched.hidden = data.total === 0 || data.items.length > 0;
    },
    close() {},
  };
}
