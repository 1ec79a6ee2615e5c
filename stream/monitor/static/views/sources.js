// All sources.

import { make, setText } from "../dom.js";
import { afterPause, burnLegend, emptyState } from "../parts.js";
import { ADD_SOURCE } from "./commands.js";
import { chip, choice, orderButton, searchField } from "./filters.js";
import { route } from "../routes.js";
import { pager } from "./pager.js";
import { sourceList } from "./source_list.js";

const LIMIT = 50;
const SORTS = [
  ["source", "Name"],
  ["left_share", "Share left"],
  ["left", "Amount left"],
  ["streams", "Streams"],
  ["state", "State"],
  ["updated", "Last change"],
];

export function sourcesView({ query, remember }) {
  const chosen = { search: query.search ?? "", state: query.state ?? "", of: query.of ?? "", sort: query.sort ?? "source", descending: query.descending === "true", offset: Number(query.offset) || 0 };
  const change = (changes) => {
    Object.assign(chosen, { offset: 0 }, changes);
    remember({ ...chosen, sort: chosen.sort === "source" ? "" : chosen.sort, offset: chosen.offset || "" }, connections());
  };
  const connections = () => [{ views: ["overview", "sources"], query: { ...chosen, limit: LIMIT } }];
  const search = searchField(chosen.of ? "Search periods: 2013-03" : "Search sources", chosen.search, afterPause(() => change({ search: search.input.value })));
  const state = choice("State", [["", "any state"], ["open", "open"], ["halted", "halted"]], chosen.state, (value) => change({ state: value }));
  const sort = choice("Sort by", SORTS, chosen.sort, (value) => change({ sort: value }), { labelled: true });
  const order = orderButton(chosen.descending, (descending) => change({ descending }));
  const only = chip("sources", chosen.of);
  const list = sourceList({ inPeriods: Boolean(chosen.of) });
  const pages = pager(LIMIT, (offset) => change({ offset }));
  const none = emptyState("No source yet", "A source is data about people with a privacy budget. Register the first one:", ADD_SOURCE);
  const unmatched = emptyState("No source matches", "Search for less of the name, or choose any state.");
  const total = make("span", { class: "quiet" });
  none.hidden = unmatched.hidden = true;
  const element = make(
    "div",
    { class: "view" },
    make("div", { class: "head" }, make("h1", {}, "Sources ", total), make("div", { class: "head-actions" }, make("a", { class: "button", href: route("register") }, "Register a source…"))),
    make("div", { class: "filters", role: "search" }, search.element, state, make("span", { class: "sorting" }, sort, order.element), only),
    make("section", { class: "card", "aria-label": "Sources" }, burnLegend(), list.element, none, unmatched),
    pages.element,
  );
  return {
    element,
    title: "Sources",
    connections: connections(),
    show(name, data) {
      if (name === "sources") {
        list.update(data.items);
        pages.update(data, chosen.of ? "period" : "source");
        setText(total, String(data.total));
        none.hidden = data.total > 0;
        unmatched.hidden = data.total === 0 || data.items.length > 0;
      }
    },
    close() {},
  };
}
