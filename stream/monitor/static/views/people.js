// All populations and allotments.

import { allotForm, allotmentTable, joinForm, populationForm } from "../allotments.js";
import { KeyedList, make, setAttribute, setText } from "../dom.js";
import { capital, plural, shareLeft, time } from "../format.js";
import { burnBar, burnLegend, card, emptyState, stateBadge } from "../parts.js";
import { route } from "../routes.js";
import { may } from "../session.js";

function populationEntry() {
  const name = make("a", { class: "name" });
  const state = stateBadge();
  const about = make("span", { class: "quiet" });
  const left = make("span", { class: "share" });
  const bar = burnBar();
  const meaning = make("p", { class: "quiet" });
  return {
    element: make("li", { class: "source" }, make("div", { class: "source-head" }, name, state.element, about, left), bar.element, meaning),
    update(row) {
      setText(name, row.population);
      setAttribute(name, "href", route("people", [row.population]));
      state.update(row);
      setText(about, `${plural(row.sources, "source")}, ${plural(row.streams, "stream")}`);
      setText(left, shareLeft(row));
      setAttribute(left, "data-low", row.left_share < 0.1);
      bar.update(row);
      setText(meaning, `${capital(row.meaning)}.${row.period ? ` It renews ${time(row.period.ends)}.` : ""}`);
    },
  };
}

export function peopleView({ session }) {
  const populations = make("ul", { class: "sources" });
  const list = new KeyedList(populations, populationEntry);
  const none = emptyState("No population", "Sources over the same people should name one: otherwise each has its own budget, and losses add up.");
  const table = allotmentTable();
  none.hidden = true;
  const change = (title, form) => make("details", { class: "card" }, make("summary", {}, title), form);
  const element = make(
    "div",
    { class: "view" },
    make("h1", {}, "People and their budgets"),
    card("Populations", burnLegend(), populations, none),
    card("Allotments", table.element),
    may(session, "operator") && [
      change("Register a population", populationForm(session)),
      change("Let a source join a population", joinForm(session)),
      change("Allot a part of a budget", allotForm(session)),
    ],
  );
  return {
    element,
    title: "People",
    connections: [{ views: ["overview", "populations", "allotments"] }],
    show(name, data) {
      if (name === "populations") {
        none.hidden = data.items.length > 0;
        list.show(data.items, (row) => row.population);
      } else if (name === "allotments") {
        table.update(data.items);
      }
    },
    close() {},
  };
}
