// Who is signed in. The token lives as long as the browser tab and is never part of an address.

import { send } from "./api.js";

const TOKEN = "sotto.token";
const ROLE = "sotto.role";
const NAME = "sotto.name";
const ASKS = "sotto.asks";

const RANKS = ["viewer", "analyst", "operator"]; // what one may, those after it may too

/** Whether a session's role may do what is for another. */
export function may(session, role) {
  return RANKS.indexOf(session.role) >= RANKS.indexOf(role);
}

/** The token and the role of this tab, or null. */
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

export function signOut() {
  sessionStorage.removeItem(TOKEN);
  sessionStorage.removeItem(ROLE);
  sessionStorage.removeItem(NAME);
  sessionStorage.removeItem(ASKS);
}
