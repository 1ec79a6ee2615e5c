// Buttons for the pages of a list that the server pages.

import { make, setText } from "../dom.js";
import { count, plural } from "../format.js";

/** `onTurn(offset)` gets the offset of the requested page. */
export function pager(limit, onTurn) {
  let offset = 0;
  const place = make("span", { class: "figure", role: "status" });
  const previous = make("button", { type: "button", onclick: () => onTurn(Math.max(offset - limit, 0)) }, "Previous");
  const next = make("button", { type: "button", onclick: () => onTurn(offset + limit) }, "Next");
  const element = make("nav", { class: "pager", "aria-label": "Pages" }, previous, place, next);
  return {
    element,
    update(page, one, many = `${one}s`) {
      offset = page.offset;
      const last = offset + page.items.length;
      const filtered = page.matching === page.total ? "" : `, out of ${count(page.total)}`;
      setText(place, page.items.length ? `${count(offset + 1)}–${count(last)} of ${plural(page.matching, one, many)}${filtered}` : page.matching === page.total ? `no ${many}` : `none of ${plural(page.total, one, many)}`);
      previous.disabled = offset === 0;
      next.disabled = last >= page.matching;
      previous.hidden = next.hidden = page.matching <= limit && offset === 0;
    },
  };
}
