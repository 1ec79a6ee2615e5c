// Events that were refused, by reason. Their content is never shown.

import { KeyedList, make, setText } from "../dom.js";
import { ago, count, time } from "../format.js";
import { card, emptyState } from "../parts.js";

function reasonRow() {
  const code = make("th", { scope: "row" });
  const figure = make("td", { class: "figure" });
  const bar = make("span");
  const last = make("td", { class: "quiet cell-last" });
  const element = make("tr", {}, code, figure, make("td", { class: "cell-bar" }, make("span", { class: "track", "aria-hidden": "true" }, bar)), last);
  return {
    element,
    update({ code: name, count: number, last: when, share }) {
      setText(code, name);
      setText(figure, count(number));
      bar.style.width = `${share * 100}%`;
      setText(last, `last ${ago(when)}`);
    },
  };
}

function eventRow() {
  const cells = ["time", "code", "message", "place"].map((name) => make("td", { class: `cell-${name}` }));
  return {
    element: make("tr", {}, cells),
    update(event) {
      setText(cells[0], time(event.time));
      setText(cells[1], event.code);
      setText(cells[2], event.message);
      setText(cells[3], `${event.topic}/${event.partition} @ ${event.offset}`);
    },
  };
}

export function rejectedView() {
  const reasons = make("tbody");
  const events = make("tbody");
  const reasonList = new KeyedList(reasons, reasonRow);
  const eventList = new KeyedList(events, eventRow);
  const total = make("span", { class: "quiet" });
  const none = emptyState("Nothing was refused", "Every event so far was well-formed and named a stream that is open.");
  none.hidden = true;
  const head = ["Time", "Reason", "What is wrong", "Topic/partition @ offset"].map((text) => make("th", { scope: "col" }, text));
  const byReason = card("By reason", make("table", { class: "plain reasons" }, reasons));
  const latest = card(
    "Latest",
    make("div", { class: "table-frame" }, make("table", { class: "plain events" }, make("thead", {}, make("tr", {}, head)), events)),
  );
  return {
    element: make("div", { class: "view" }, make("h1", {}, "Rejected events ", total), none, byReason, latest),
    title: "Rejected events",
    connections: [{ views: ["overview", "rejected"] }],
    show(name, data) {
      if (name !== "rejected") {
        return;
      }
      setText(total, count(data.total));
      none.hidden = data.total > 0;
      byReason.hidden = latest.hidden = data.total === 0;
      const most = Math.max(...data.reasons.map((reason) => reason.count), 1);
      reasonList.show(data.reasons.map((reason) => ({ ...reason, share: reason.count / most })), (reason) => reason.code);
      eventList.show(data.recent, (event) => `${event.topic} ${event.partition} ${event.offset}`);
    },
    close() {},
  };
}
