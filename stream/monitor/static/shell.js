// The frame of every view: navigation, user and connection state.

import { make, setAttribute, setText } from "./dom.js";
import { plural, time } from "./format.js";
import { route } from "./routes.js";

const PLACES = [["overview", "Overview"], ["alerts", "Alerts"], ["streams", "Streams"], ["sources", "Sources"], ["people", "People"], ["plan", "Plan"], ["ask", "Ask"], ["workers", "Workers"], ["rejected", "Rejected"], ["trail", "Trail"]];

/** The frame; `onRetry` and `onSignOut` are called by their buttons. */
export function shell(session, { onRetry, onSignOut }) {
  const links = PLACES.map(([place, text]) => make("a", { href: route(place), "data-place": place }, text));
  const nav = make("nav", { id: "places", class: "places", "aria-label": "Places" }, links);
  const menu = make("button", { type: "button", class: "plain-button menu", "aria-controls": "places", "aria-expanded": "false", onclick: () => openMenu(menu.getAttribute("aria-expanded") === "false") }, "Menu");
  const live = make("span", { class: "live", role: "status" });
  const bannerText = make("span");
  const banner = make("div", { class: "banner", role: "alert", hidden: true }, bannerText, make("button", { type: "button", onclick: onRetry }, "Try now"));
  const readingText = make("span");
  const reading = make("div", { class: "banner notice", role: "status", hidden: true }, readingText);
  const main = make("main", { id: "content", tabindex: "-1" });
  const element = make(
    "div",
    { class: "shell" },
    make("a", { class: "skip", href: "#content", onclick: (event) => { event.preventDefault(); main.focus(); } }, "Skip to content"),
    make(
      "header",
      { class: "top" },
      make("a", { class: "brand", href: route("overview") }, "Sotto"),
      menu,
      nav,
      make("div", { class: "who" }, live, make("span", { class: "quiet name" }, session.name), session.role === session.name ? null : make("span", { class: "quiet" }, session.role), make("button", { type: "button", class: "plain-button", onclick: onSignOut }, "Sign out")),
    ),
    banner,
    reading,
    main,
  );
  const openMenu = (isOpen) => setAttribute(menu, "aria-expanded", String(isOpen));
  let isReady = true;
  let connected = { live: false, lost: false, heard: null };

  function show() {
    const { live: isLive, lost, heard } = connected;
    const isCurrent = isLive && isReady;
    setAttribute(live, "data-live", String(isCurrent));
    setText(live, isCurrent ? "live" : lost ? "not live" : isReady ? "connecting" : "not up to date");
    banner.hidden = !lost;
    reading.hidden = isReady || lost;
    main.classList.toggle("stale", lost || (!isLive && heard !== null));
    if (lost) {
      const figures = heard === null ? "No figures yet" : `Figures are as of ${time(heard / 1000)}`;
      setText(bannerText, `Connection lost. ${figures}; trying again.`);
    }
  }

  return {
    element,
    main,
    mark(place) {
      openMenu(false);
      links.forEach((one) => setAttribute(one, "aria-current", one.dataset.place === place ? "page" : null));
    },
    /** Show if the monitor is ready: until it is, figures are missing or old. */
    ready({ ready, behind, reason }) {
      isReady = ready;
      if (!ready) {
        setText(readingText, `Not up to date: ${reason ?? "the monitor is not ready"}${behind ? `, ${plural(behind, "record")} to go` : ""}.`);
      }
      show();
    },
    /** Show the connections' state; `heard` is the last time of live figures in milliseconds, or null. */
    connection(state) {
      connected = state;
      show();
    },
  };
}
