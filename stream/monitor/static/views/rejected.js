// Dead letters by reason. Of their content only the question's stream and id are shown.

import { KeyedList, link, make, setAttribute, setText, tableHead } from "../dom.js";
import { ago, count, time } from "../format.js";
import { afterPause, card, emptyState } from "../parts.js";
import { route } from "../routes.js";
import { choice, searchField } from "./filters.js";

const LIMIT = 100;
const HEADS = ["Time", "Reason", "Stream", "Id", "Problem", "Topic/partition @ offset"];
const CELLS = ["time", "code", "stream", "id", "message", "place"];

function reasonRow(onChoose) {
  let shown = "";
  const code = make("button", { type: "button", class: "link-button", onclick: () => onChoose(shown) });
  const figure = make("td", { class: "figure" });
  const bar = make("span");
  const last = make("td", { class: "quiet cell-last" });
  const element = make("tr", {}, make("th", { scope: "row" }, code), figure, make("td", { class: "cell-bar" }, make("span", { class: "track rejected", "aria-hidden": "true" }, bar)), last);
  return {
    element,
    update({ code: name, count: number, last: when, share, chosen }) {
      shown = chosen ? "" : name;
      setText(code, name);
      setAttribute(code, "aria-pressed", String(chosen));
      setAttribute(code, "title", chosen ? "Show all reasons" : `Show only ${name}`);
      setText(figure, count(number));
      bar.style.width = `${share * 100}%`;
      setText(last, `last ${ago(when)}`);
    },
  };
}

function eventRow() {
  const cells = CELLS.map((name, index) => make("td", { class: `cell-${name}`, "data-label": HEADS[index] }));
  return {
    element: make("tr", {}, cells),
    update(event) {
      setText(cells[0], time(event.time));
      setText(cells[1], event.code);
      if (cells[2].textContent !== (event.stream ?? "–")) {
        cells[2].replaceChildren(event.stream === null ? "–" : link(route("streams", [event.stream]), event.stream));
      }
      setText(cells[3], event.id ?? "–");
      setText(cells[4], event.message);
      setText(cells[5], `${event.topic}/${event.partition} @ ${event.offset}`);
    },
  };
}

export function rejectedView({ query, remember }) {
  const chosen = { search: query.search ?? "", code: query.code ?? "" };
  const connections = () => [{ views: ["overview", "rejected"], query: { ...chosen, limit: LIMIT } }];
  const change = (changes) => {
    Object.assign(chosen, changes);
    remember({ ...chosen }, connections());
  };
  const search = searchField("Search streams and ids", chosen.search, afterPause(() => change({ search: search.input.value })));
  const reason = choice("Reason", [["", "any reason"], ...(chosen.code ? [[chosen.code, chosen.code]] : [])], chosen.code, (value) => change({ code: value }));
  const select = reason.querySelector("select");
  const reasons = make("tbody");
  const events = make("tbody");
  const reasonList = new KeyedList(reasons, () =>
    reasonRow((code) => {
      select.value = code;
      change({ code });
    }),
  );
  const eventList = new KeyedList(events, eventRow);
  const total = make("span", { class: "quiet" });
  const matching = make("p", { class: "quiet", role: "status" });
  const none = emptyState("No refused question is listed", "Refusals for the price, as busy or by an exhausted stream are only in the stream's answers. Refused events of live topics are not counted here: operators see their share on the source's page.");
  none.hidden = true;
  const filters = make("div", { class: "filters", role: "search" }, search.element, reason);
  const byReason = card("By reason", make("table", { class: "plain reasons", "aria-label": "By reason" }, reasons));
  const latest = card("Latest", filters, matching, make("div", { class: "table-frame" }, make("table", { class: "plain events", "aria-label": "Latest" }, tableHead(...HEADS), events)));

  function offer(codes) {
    const known = [...select.options].map((one) => one.value);
    for (const code of codes.filter((one) => !known.includes(one))) {
      select.append(make("option", { value: code }, code));
    }
  }

  return {
    element: make("div", { class: "view" }, make("h1", {}, "Rejected questions ", total), none, byReason, latest),
    title: "Rejected questions",
    connections: connections(),
    show(name, data) {
      if (name !== "rejected") {
        return;
      }
      setText(total, count(data.total));
      none.hidden = data.total > 0;
      byReason.hidden = latest.hidden = data.total === 0;
      offer(data.reasons.map((one) => one.code));
      const most = Math.max(...data.reasons.map((one) => one.count), 1);
      reasonList.show(data.reasons.map((one) => ({ ...one, share: one.count / most, chosen: one.code === chosen.code })), (one) => one.code);
      eventList.show(data.recent, (event) => `${event.topic} ${event.partition} ${event.offset}`);
      setText(matching, data.matching ? `${count(data.recent.length)} shown of the ${count(data.matching)} matching; the latest hundred of each reason are kept` : "None that match.");
    },
    close() {},
  };
}
