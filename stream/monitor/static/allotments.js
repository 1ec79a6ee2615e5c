// A table of allotments, and forms that register populations, add sources to them, and allot; each asks for confirmation.

import { send } from "./api.js";
import { confirm, receiptLine } from "./confirm.js";
import { KeyedList, link, make, setText, tableHead } from "./dom.js";
import { given, labelled, listed, numberInput, select, textInput, typed } from "./forms.js";
import { amount, capital, count, percent } from "./format.js";
import { emptyState } from "./parts.js";
import { route } from "./routes.js";

function allotmentRow() {
  const head = make("th", { scope: "row", class: "name" });
  const of = make("td", { "data-label": "Of" });
  const who = make("td", { "data-label": "Analysts" });
  const figures = ["Allotted", "Granted", "Refunded", "Left"].map((name) => make("td", { "data-label": name }));
  const streams = make("td", { class: "figure", "data-label": "Streams" });
  const meaning = make("td", { class: "quiet cell-meaning", "data-label": "Guarantee" });
  return {
    element: make("tr", {}, head, of, who, figures, streams, meaning),
    update(row) {
      setText(head, row.allotment);
      const place = row.source === null ? route("people", [row.population]) : route("sources", [row.source]);
      of.replaceChildren(row.source === null ? "population " : "source ", link(place, row.source ?? row.population));
      setText(who, row.analysts.join(", "));
      setText(figures[0], amount(row.total));
      setText(figures[1], amount(row.granted));
      setText(figures[2], amount(row.refunded));
      setText(figures[3], `${amount(row.left, true)} (${percent(row.left_share)})${row.limited_by.length ? `, limited by ${row.limited_by.join(" and ")}` : ""}`);
      figures[3].toggleAttribute("data-low", row.left_share < 0.1);
      setText(streams, count(row.streams));
      setText(meaning, capital(row.meaning));
    },
  };
}

/** A table of allotments. */
export function allotmentTable() {
  const body = make("tbody");
  const list = new KeyedList(body, allotmentRow);
  const table = make("table", { class: "plain people-table", "aria-label": "Allotments" }, tableHead("Allotment", "Of", "Analysts", "Allotted", "Granted", "Refunded", "Left", "Streams", "Guarantee"), body);
  const none = emptyState("Nothing is allotted", "An allotment is a part of a budget, within which analysts open streams. Without allotments, only operators open streams through this page.");
  return {
    element: make("div", {}, table, none),
    update(items) {
      table.hidden = items.length === 0;
      none.hidden = items.length > 0;
      list.show(items, (row) => `${row.source ?? ""}|${row.population ?? ""}|${row.allotment}`);
    },
  };
}

/** Open a confirmation dialog, which sends one request with one id. */
function act(session, { verb, subject, name, effect, path, body, done }) {
  return confirm({
    session,
    verb,
    subject,
    name,
    effect,
    async perform(token, request) {
      const receipt = await send(path, token, { method: "POST", body: { request, ...body } });
      return `${done}${receipt.meaning ? ` ${capital(receipt.meaning)}.` : ""}\n${receiptLine(receipt)}`;
    },
  });
}

/** Say what is wrong with a typed ε or δ; null if nothing is. */
function wrongAmounts(epsilon, delta) {
  const [most, rest] = [typed(epsilon), typed(delta)];
  if (!(Number.isFinite(most) && most > 0)) {
    return "ε: give a number above 0, as 0.5.";
  }
  return rest === undefined || (Number.isFinite(rest) && rest >= 0) ? null : "δ: give a number from 0 to 1, as 0.000001, or nothing.";
}

function form(button, onsubmit, ...fields) {
  const wrong = make("p", { class: "outcome", role: "alert", "data-level": "refused", hidden: true });
  const element = make("form", { class: "sheet", novalidate: true }, fields, wrong, make("div", { class: "buttons" }, make("button", { type: "submit" }, button)));
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    const problem = onsubmit();
    wrong.hidden = !problem;
    setText(wrong, problem ?? "");
  });
  return element;
}

/** The form that registers a population. */
export function populationForm(session) {
  const name = textInput({ maxlength: "128", placeholder: "patients" });
  const epsilon = numberInput({ placeholder: "10" });
  const delta = numberInput({ placeholder: "0" });
  const accountant = select([["pure", "ε and δ added up"], ["zcdp", "zCDP: ρ, for Gaussian noise"]]);
  const renews = textInput({ maxlength: "40", placeholder: "never" });
  return form(
    "Register population…",
    () => {
      const wrong = name.value.trim() ? wrongAmounts(epsilon, delta) : "Give a name.";
      if (wrong) {
        return wrong;
      }
      const period = renews.value.trim();
      const population = given({ population: name.value.trim(), epsilon: Number(epsilon.value), delta: typed(delta), accountant: accountant.value, renews: period || undefined });
      act(session, {
        verb: "Register",
        subject: "population",
        name: population.population,
        effect: `Grants on its sources count against ${amount({ epsilon: population.epsilon, delta: typed(delta) || 0, rho: null })} as well, ${period ? `renewed every ${period}: privacy is then per period, not for ever` : "for ever"}. It cannot be changed or taken back.`,
        path: "/api/populations",
        body: { population },
        done: "The population is registered; let its sources join.",
      });
      return null;
    },
    labelled("Name", name),
    labelled("Budget ε", epsilon, "for all its sources together"),
    labelled("Budget δ", delta, "above 0 with zCDP"),
    labelled("Counted by", accountant),
    labelled("Renews every", renews, "such as 30d or 12h; empty: never"),
  );
}

/** The form that adds a source to a population. */
export function joinForm(session, { source = "", population = "" } = {}) {
  const from = textInput({ maxlength: "128", value: source, placeholder: "source" });
  const to = textInput({ maxlength: "128", value: population, placeholder: "population" });
  return form(
    "Join population…",
    () => {
      const body = { source: from.value.trim(), population: to.value.trim() };
      if (!body.source || !body.population) {
        return "Name a source and a population.";
      }
      act(session, {
        verb: "Join",
        subject: "population",
        name: body.population,
        effect: `Source ${body.source} permanently belongs to it. Its existing grants count at once; they must fit, or the request is refused.`,
        path: "/api/joins",
        body,
        done: "The source belongs to the population.",
      });
      return null;
    },
    labelled("Source", from),
    labelled("Population", to),
  );
}

/** The form that allots a part of a budget to analysts. */
export function allotForm(session, { kind = "source", of = "" } = {}) {
  const name = textInput({ maxlength: "128", placeholder: "ana" });
  const owner = select([["source", "a source"], ["population", "a population"]], kind);
  const whose = textInput({ maxlength: "128", value: of, placeholder: "its name" });
  const analysts = textInput({ maxlength: "4096", placeholder: "ana, ben" });
  const epsilon = numberInput({ placeholder: "2" });
  const delta = numberInput({ placeholder: "the budget's" });
  return form(
    "Allot…",
    () => {
      const wrong = name.value.trim() && whose.value.trim() ? wrongAmounts(epsilon, delta) : "Give a name and the owner of the budget.";
      if (wrong) {
        return wrong;
      }
      const team = listed(analysts);
      const body = given({ allotment: name.value.trim(), [owner.value]: whose.value.trim(), analysts: team.length ? team : undefined, epsilon: Number(epsilon.value), delta: typed(delta) });
      act(session, {
        verb: "Allot",
        subject: amount({ epsilon: body.epsilon, delta: body.delta || 0, rho: null }),
        name: `of ${whose.value.trim()} to ${body.allotment}`,
        effect: `${team.length ? team.join(", ") : `The analysts of ${body.allotment}`} share ${amount({ epsilon: body.epsilon, delta: body.delta || 0, rho: null })}${body.delta === undefined ? " and the budget's δ" : ""} of ${owner.value} ${whose.value.trim()} from now on, in place of what this allotment had before. From then on, analysts without an allotment cannot open streams there.`,
        path: "/api/allotments",
        body,
        done: "It is allotted.",
      });
      return null;
    },
    labelled("Name of the allotment", name, "the analyst's own, or a team's"),
    labelled("Part of the budget of", owner),
    labelled("Named", whose),
    labelled("Analysts", analysts, "separated by commas; empty: its present analysts, or the analyst with the allotment's name"),
    labelled("ε", epsilon),
    labelled("δ", delta),
  );
}
