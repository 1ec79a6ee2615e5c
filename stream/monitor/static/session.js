// Who is signed in. The token lives as long as the browser tab and is never part of an address.

import { send } from "./api.js";

const TOKEN = "sotto.token";
const ROLE = "sotto.role";
const NAME = "sotto.name";

/** The token and the role of this tab, or null. */
export function current() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { token, name: sessionStorage.getItem(NAME) ?? "", role: sessionStorage.getItem(ROLE) ?? "viewer" } : null;
}

/** Ask whose token this is and remember it; an ApiError if it is nobody's. */
export async function signIn(token) {
  const { name, role } = await send("/api/session", token);
  sessionStorage.setItem(TOKEN, token);
  sessionStorage.setItem(ROLE, role);
  sessionStorage.setItem(NAME, name);
  return { token, name, role };
}

export function signOut() {
  sessionStorage.removeItem(TOKEN);
  sessionStorage.removeItem(ROLE);
  sessionStorage.removeItem(NAME);
}
