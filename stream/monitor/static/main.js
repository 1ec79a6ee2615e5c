// The page's entry point: sign-in, navigation between views, and live connections that update them.

import { LiveConnection } from "./events.js";
import { link, make } from "./dom.js";
import { emptyState } from "./parts.js";
import { parse, route } from "./routes.js";
import { current, findSingleSignOn, signOut } from "./session.js";
import { shell } from "./shell.js";
import { alertsView } from "./views/alerts.js";
import { askView } from "./views/ask.js";
import { loginView } from "./views/login.js";
import { overviewView } from "./views/overview.js";
import { peopleView } from "./views/people.js";
import { planView } from "./views/plan.js";
import { populationView } from "./views/population.js";
import { registerView } from "./views/register.js";
import { rejectedView } from "./views/rejected.js";
import { sourceView } from "./views/source.js";
import { sourcesView } from "./views/sources.js";
import { streamView } from "./views/stream.js";
import { streamsView } from "./views/streams.js";
import { trailView } from "./views/trail.js";
import { workersView } from "./views/workers.js";

const HIDDEN_MS = 60_000; // after this time a hidden tab closes its connections

const VIEWS = {
  overview: [overviewView],
  alerts: [alertsView],
  streams: [streamsView, streamView],
  sources: [sourcesView, sourceView],
  register: [registerView],
  people: [peopleView, populationView],
  plan: [planView],
  ask: [askView],
  workers: [workersView],
  rejected: [rejectedView],
  trail: [trailView],
};

const SIGN_IN_FAULTS = {
  denied: "The sign-in was cancelled.",
  expired: "The sign-in took too long, or began in another browser; begin again.",
  failed: "The sign-in failed; the monitor's log has the reason.",
  role: "You are known, but have no role here; ask an operator of Sotto.",
  unavailable: "The provider of single sign-on does not answer; try again later.",
};

const page = document.getElementById("page");

class Application {
  constructor(session) {
    this.session = session;
    this.connections = [];
    this.states = [];
    this.frame = shell(session, {
      onRetry: () => this.connections.forEach((connection) => connection.reconnectNow()),
      onSignOut: () => this.leave(),
    });
    page.replaceChildren(this.frame.element);
    this.onHash = () => this.go();
    this.onVisibility = () => this.disconnectIfHidden();
    addEventListener("hashchange", this.onHash);
    document.addEventListener("visibilitychange", this.onVisibility);
    this.go();
  }

  /** Show the view that the page's address names. */
  go() {
    this.disconnect();
    this.view?.close();
    document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
    const place = parse(location.hash);
    const make = place && Object.hasOwn(VIEWS, place.place) ? VIEWS[place.place][place.names.length] : undefined;
    this.view = make ? make({ ...place, session: this.session, remember: (query, wanted) => this.remember(place, query, wanted) }) : notFoundView();
    document.title = `${this.view.title} – Sotto`;
    this.frame.mark(place?.place);
    this.frame.main.replaceChildren(this.view.element);
    scrollTo({ top: 0 });
    this.wanted = this.view.connections;
    this.connect();
  }

  /** Write a view's filters to the page's address, and request the filtered data. */
  remember(place, query, wanted) {
    history.replaceState(null, "", route(place.place, place.names, query));
    this.wanted = wanted;
    this.disconnect();
    this.connect();
  }

  connect() {
    this.states = this.wanted.map(() => null);
    this.frame.connection({ live: false, lost: false, heard: null });
    this.connections = this.wanted.map(
      (wanted, index) =>
        new LiveConnection({
          ...wanted,
          token: this.session.token,
          onEvent: (name, data) => this.show(name, data),
          onState: (state) => this.connectionIs(index, state),
          onDenied: () => this.leave("This token is no longer known; sign in again."),
        }),
    );
  }

  disconnect() {
    this.connections.forEach((connection) => connection.close());
    this.connections = [];
  }

  show(name, data) {
    if (name === "problem") {
      this.clearProblem();
      this.view.element.classList.add("absent");
      const back = this.view.back ? make("p", {}, link(this.view.back.route, this.view.back.text)) : null;
      this.view.element.append(make("div", { class: "problem" }, make("p", { class: "outcome", role: "alert", "data-level": "refused" }, data.message), back));
      return;
    }
    if (name === "readiness") {
      this.frame.ready(data);
      return;
    }
    if (name !== "overview" && name === (this.view.subject ?? name)) {
      this.clearProblem();
    }
    this.view.show(name, data);
  }

  clearProblem() {
    this.view.element.classList.remove("absent");
    this.view.element.querySelector(".problem")?.remove();
  }

  connectionIs(index, state) {
    this.states[index] = state;
    const behind = this.states.filter((one) => one && !one.live).map((one) => one.heard);
    this.frame.connection({
      live: this.states.every((one) => one?.live),
      lost: this.states.some((one) => one && !one.open),
      heard: !behind.length || behind.includes(null) ? null : Math.min(...behind),
    });
  }

  /** Close the connections of a hidden tab after a while; open them again when it is shown. */
  disconnectIfHidden() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => this.disconnect(), HIDDEN_MS);
    } else if (!this.connections.length) {
      this.connect();
    }
  }

  leave(message = "") {
    removeEventListener("hashchange", this.onHash);
    document.removeEventListener("visibilitychange", this.onVisibility);
    clearTimeout(this.hiding);
    this.disconnect();
    this.view.close();
    document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
    signOut();
    askForToken(message);
  }
}

function notFoundView() {
  const element = make("div", { class: "view" }, emptyState("There is no such page", "Choose a place above, or go back to the overview."), link(route("overview"), "Overview"));
  return { element, title: "No such page", connections: [{ views: ["overview"] }], show() {}, close() {} };
}

function askForToken(message) {
  document.title = "Sign in – Sotto";
  const login = loginView((session) => new Application(session), message);
  page.replaceChildren(login.element);
  login.focus();
}

async function begin() {
  const fault = new URLSearchParams(location.hash.slice(1)).get("sign-in");
  if (fault !== null) {
    history.replaceState(null, "", location.pathname);
  }
  const session = current() ?? (await findSingleSignOn());
  if (session) {
    new Application(session);
  } else {
    askForToken(fault === null ? "" : (SIGN_IN_FAULTS[fault] ?? SIGN_IN_FAULTS.failed));
  }
}

begin();
