// The dialog that refreshes a table source: it first lists which streams continue and which are closed.

import { send } from "./api.js";
import { confirm, receiptLine } from "./confirm.js";
import { make } from "./dom.js";
import { flag } from "./forms.js";
import { plural } from "./format.js";

const EFFECT =
  "The table's current file becomes the next version of its data. First put the new file on all machines: a worker with a different file answers halted. Refresh other sources of the same file, too. Earlier answers stay valid.";
const CONTINUES = ["Continues with the new version", "No stream continues"];
const CLOSES = ["Is closed, and its unspent grant is refunded", "No stream is closed"];
const PAGE = 500;

/** A button that opens the dialog. */
export function refreshButton(source, session) {
  return make("button", { type: "button", onclick: () => ask(source, session) }, "Refresh source…");
}

function ask(source, session) {
  const affected = make("div", { class: "affected", "aria-live": "polite" }, make("p", { class: "quiet" }, "Reading the affected streams…"));
  const all = flag("Close all of its streams");
  let streams = null;
  let unread = "The affected streams are not known yet: wait for the list.";

  function show() {
    const closes = (one) => all.control.checked || one.at_refresh === "closes";
    affected.replaceChildren(...part(CONTINUES, streams.filter((one) => !closes(one))), ...part(CLOSES, streams.filter(closes)));
  }

  const dialog = confirm({
    session,
    verb: "Refresh",
    subject: "source",
    name: source,
    effect: EFFECT,
    details: [affected],
    fields: [all],
    danger: true,
    prepare: () => (streams === null ? unread : null),
    async perform(token, request) {
      const body = { kind: "refresh", request, source, close: all.control.checked };
      const receipt = await send("/api/refreshes", token, { method: "POST", body });
      return `The source has version ${receipt.version} of its data; until a worker has loaded it, answers are about the old version.\n${receiptLine(receipt)}`;
    },
  });
  all.control.addEventListener("change", () => streams && show());
  streamsOf(source, session).then(
    (found) => {
      streams = found;
      show();
    },
    (error) => {
      unread = `The affected streams could not be read: ${error.message} Cancel, and try again.`;
      affected.replaceChildren(make("p", { class: "outcome", "data-level": "refused" }, unread));
    },
  );
  return dialog;
}

/** Return a source's streams that a refresh affects. */
async function streamsOf(source, session) {
  const found = [];
  let page;
  do {
    const query = new URLSearchParams({ source, limit: PAGE, offset: found.length });
    page = await send(`/api/streams?${query}`, session.token);
    found.push(...page.items);
  } while (page.items.length && found.length < page.matching);
  return found.filter((one) => one.at_refresh !== null);
}

function part([title, none], streams) {
  if (!streams.length) {
    return [make("p", { class: "quiet" }, `${none}.`)];
  }
  const head = make("p", {}, `${title}: `, make("span", { class: "quiet" }, plural(streams.length, "stream")));
  return [head, make("ul", { tabindex: "0", "aria-label": title }, streams.map(({ stream }) => make("li", { class: "name" }, stream)))];
}
