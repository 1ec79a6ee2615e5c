// Where in the page one is, as the part of the address behind the #.

import { parameters } from "./api.js";

/** The address of a place: route("streams", [name], { search }) is "#/streams/NAME?search=…". */
export function route(place, names = [], query = {}) {
  const path = [place, ...names].map(encodeURIComponent).join("/");
  const given = parameters(query);
  return `#/${path}${given ? `?${given}` : ""}`;
}

/** The place, names and query that an address means, or null if it cannot be read. */
export function parse(hash) {
  const [path, given = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  try {
    const [place, ...names] = path.split("/").map(decodeURIComponent);
    return { place: place || "overview", names, query: Object.fromEntries(new URLSearchParams(given)) };
  } catch {
    return null;
  }
}
