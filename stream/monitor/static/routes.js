// Converts a place in the page to the part of its address after the #, and back.

import { parameters } from "./api.js";

/** The address of a place: route("streams", [name], { search }) is "#/streams/NAME?search=…". */
export function route(place, names = [], query = {}) {
  const path = [place, ...names].map(encodeURIComponent).join("/");
  const given = parameters(query);
  return `#/${path}${given ? `?${given}` : ""}`;
}

/** Return the place, names and query of an address; null if it cannot be decoded. */
export function parse(hash) {
  const [path, given = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  try {
    const [place, ...names] = path.split("/").map(decodeURIComponent);
    return { place: place || "overview", names, query: Object.fromEntries(new URLSearchParams(given)) };
  } catch {
    return null;
  }
}
