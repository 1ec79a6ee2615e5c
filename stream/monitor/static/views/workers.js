// Services' processes and partitions, with their lag and restores.

import { KeyedList, make, setAttribute, setText, tableHead } from "../dom.js";
import { ago, bytes, count, duration, lag, percent, plural, rate, time } from "../format.js";
import { card, emptyState } from "../parts.js";
import { SERVE } from "./commands.js";

const MEMBERS = ["Process", "Service", "Host", "Partitions", "Lag", "Events/s", "Version", "Up for", "Memory", "Last heartbeat"];
const SILENT_SECONDS = 20; // two heartbeats; Kafka lists a dead process for 45 s
const PARTITIONS = ["Service", "Partition", "Process", "Position", "End", "Lag", "Events/s", "Restore"];

function cellsOf(names) {
  return names.map((name) => make("td", { "data-short": name === "Process" ? null : name.toLowerCase(), class: `cell-${name.toLowerCase().replaceAll(/[/ ]/g, "-")}` }));
}

function memberRow() {
  const cells = cellsOf(MEMBERS);
  const name = make("span");
  const reason = make("p", { class: "reason" });
  cells[0].append(name, reason);
  return {
    element: make("tr", {}, cells),
    update(member) {
      const { started, memory, heard, version, not_ready: notReady } = member;
      const now = Date.now() / 1000;
      const isSilent = heard !== null && now - heard > SILENT_SECONDS;
      const shown = [
        member.role,
        member.host,
        ranges(member.partitions),
        lag(member),
        rate(member.events_per_second),
        version ?? "–",
        isSilent ? "silent" : started === null ? "–" : duration(Math.max(now - started, 0)),
        memory === null ? "–" : bytes(memory),
        heard === null ? "no heartbeat yet" : ago(heard),
      ];
      setText(name, member.member);
      setText(reason, notReady === null ? "" : `Not ready: ${notReady}`);
      reason.hidden = notReady === null;
      shown.forEach((text, index) => setText(cells[index + 1], text));
      setAttribute(cells[7], "title", started === null ? null : `since ${time(started)}`);
      setAttribute(cells[9], "title", heard === null ? null : time(heard));
      setAttribute(cells[9], "data-silent", isSilent);
    },
  };
}

function partitionRow() {
  const cells = cellsOf(PARTITIONS);
  const words = make("span", { class: "figure" });
  const done = make("span");
  const track = make("span", { class: "track", "aria-hidden": "true" }, done);
  const element = make("tr", {}, cells);
  cells[7].append(make("span", { class: "cutoff" }, words, track));
  return {
    element,
    update(row) {
      const position = row.position === null ? "–" : count(row.position);
      const markers = row.lag || row.hidden_lag || row.position === null ? 0 : row.end - row.position; // of transactions, at the end
      const end = `${count(row.end)}${markers > 0 ? ` (${plural(markers, "marker")})` : ""}`;
      const shown = [row.role, String(row.partition), row.member ?? "none", position, end, lag(row), rate(row.events_per_second)];
      shown.forEach((text, index) => setText(cells[index], text));
      setAttribute(element, "data-unassigned", row.member === null);
      setText(words, describeRestore(row.restore));
      track.hidden = row.restore?.phase !== "restoring";
      if (row.restore) {
        done.style.width = `${shareRestored(row.restore) * 100}%`;
      }
    },
  };
}

function shareRestored({ records, total }) {
  return total > 0 ? Math.min(records / total, 1) : 1;
}

function describeRestore(restore) {
  if (restore === null) {
    return "–";
  }
  if (restore.phase === "restoring") {
    return `${percent(shareRestored(restore))} of ${plural(restore.total, "offset")}`;
  }
  return `ready: ${plural(restore.records, "record")} in ${duration(restore.seconds)}`;
}

/** Partitions as ranges: 0–3, 6. */
function ranges(partitions) {
  const parts = [];
  for (const partition of [...partitions].sort((a, b) => a - b)) {
    const last = parts[parts.length - 1];
    if (last && last[1] === partition - 1) {
      last[1] = partition;
    } else {
      parts.push([partition, partition]);
    }
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ") || "none";
}

function table(columns, body, label) {
  return make("div", { class: "table-frame" }, make("table", { class: "stacked", "aria-label": label }, tableHead(...columns), body));
}

export function workersView() {
  const members = make("tbody");
  const partitions = make("tbody");
  const memberList = new KeyedList(members, memberRow);
  const partitionList = new KeyedList(partitions, partitionRow);
  const none = emptyState("No service is running", "Without services, no query is answered and no budget is granted. Start them:", SERVE);
  none.hidden = true;
  const feeds = make("p", { class: "quiet" }, "A feed's lag and events are those of the topic of partial counts. How many events a live topic has is private.");
  const processes = card("Processes", table(MEMBERS, members, "Processes"), feeds, none);
  const offsets = make("p", { class: "quiet" }, "Lag is counted in offsets: events, and the ends of transactions (markers) between them.");
  const inputs = card("Input partitions", table(PARTITIONS, partitions, "Input partitions"), offsets);
  return {
    element: make("div", { class: "view" }, make("h1", {}, "Workers"), processes, inputs),
    title: "Workers",
    connections: [{ views: ["overview", "workers"] }],
    show(name, data) {
      if (name !== "workers") {
        return;
      }
      memberList.show(data.members, (member) => `${member.role} ${member.member}`);
      partitionList.show(data.partitions, (row) => `${row.role} ${row.partition}`);
      none.hidden = data.members.length > 0;
      feeds.hidden = data.members.every((member) => member.role !== "feed");
      processes.querySelector(".table-frame").hidden = data.members.length === 0;
      inputs.hidden = data.partitions.length === 0;
    },
    close() {},
  };
}
