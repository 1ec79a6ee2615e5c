// The signed-in user. The token is kept as long as the browser tab and is never part of an address.

import { BY_COOKIE, open, send } from "./api.js";

const TOKEN = "sotto.token";
const ROLE = "sotto.role";
const NAME = "sotto.name";
const ASKS = "sotto.asks";

const RANKS = ["viewer", "analyst", "operator"]; // each role has the rights of those before it

/** True if a session's role has the rights of `role`. */
export function may(session, role) {
  return RANKS.indexOf(session.role) >= RANKS.indexOf(role);
}

/** The tab's session (token, name, role, asks), or null. */
export function current() {
  const token = sessionStorage.getItem(TOKEN);
  if (!token) {
    return null;
  }
  const kept = (name) => sessionStorage.getItem(name) ?? "";
  return { token, name: kept(NAME), role: kept(ROLE) || "viewer", asks: kept(ASKS) === "true" };
}

/** Look up a token's user and remember the token; ApiError if it is unknown. */
export async function signIn(token) {
  const { name, role, asks } = await send("/api/session", token);
  sessionStorage.setItem(TOKEN, token);
  sessionStorage.setItem(ROLE, role);
  sessionStorage.setItem(NAME, name);
  sessionStorage.setItem(ASKS, String(asks));
  return { token, name, role, asks };
}

/** The path of single sign-on; undefined if the monitor does not offer it. */
export const SIGN_IN_PATH = document.documentElement.dataset.signIn;

/** Return the session of single sign-on, or null. */
export async function findSingleSignOn() {
  try {
    return SIGN_IN_PATH ? await signIn(BY_COOKIE) : null;
  } catch {
    return null;
  }
}

export function signOut() {
  if (sessionStorage.getItem(TOKEN) === BY_COOKIE) {
    open("/sign-out", BY_COOKIE, { method: "POST" }).catch(() => {}); // an expired session has ended already
  }
  sessionStorage.clear(); // with the entries of the registration form
}
