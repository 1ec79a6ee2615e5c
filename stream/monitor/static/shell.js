// What stands around every view: navigation, who is signed in, and whether the figures are live.

import { make, setAttribute, setText } from "./dom.js";
import { time } from "./format.js";
import { route } from "./routes.js";

const PLACES = [["overview", "Overview"], ["streams", "Streams"], ["sources", "Sources"], ["workers", "Workers"], ["rejected", "Rejected"]];

/** `onRetry` and `onSignOut` are called by their buttons. */
export function shell(session, { onRetry, onSignOut }) {
  const links = PLACES.map(([place, text]) => make("a", { href: route(place), "data-place": place }, text));
  const live = make("span", { class: "live", role: "status" });
  const bannerText = make("span");
  const banner = make("div", { class: "banner", role: "alert", hidden: true }, bannerText, make("button", { type: "button", onclick: onRetry }, "Try now"));
  const reading = make("div", { class: "banner notice", role: "status", hidden: true }, "The monitor is still reading the log: figures are incomplete for a moment.");
  const main = make("main", { id: "content", tabindex: "-1" });
  const element = make(
    "div",
    { class: "shell" },
    make("a", { class: "skip", href: "#content", onclick: (event) => { event.preventDefault(); main.focus(); } }, "Skip to content"),
    make(
      "header",
      { class: "top" },
      make("a", { class: "brand", href: route("overview") }, "Sotto"),
      make("nav", { class: "places", "aria-label": "Places" }, links),
      make("div", { class: "who" }, live, make("span", { class: "quiet" }, session.role), make("button", { type: "button", class: "plain-button", onclick: onSignOut }, "Sign out")),
    ),
    banner,
    reading,
    main,
  );
  return {
    element,
    main,
    mark(place) {
      links.forEach((one) => setAttribute(one, "aria-current", one.dataset.place === place ? "page" : null));
    },
    /** Whether the monitor has read everything; figures are incomplete until then. */
    ready(isReady) {
      reading.hidden = isReady;
    },
    /** `heard` is when the last sign of life came, in milliseconds, or null if there was none. */
    connection({ live: isLive, lost, heard }) {
      setAttribute(live, "data-live", String(isLive));
      setText(live, isLive ? "live" : lost ? "not live" : "connecting");
      banner.hidden = !lost;
      main.classList.toggle("stale", lost);
      if (lost) {
        const figures = heard === null ? "There are no figures yet" : `Figures are as of ${time(heard / 1000)}`;
        setText(bannerText, `Connection lost. ${figures}; trying again.`);
      }
    },
  };
}
