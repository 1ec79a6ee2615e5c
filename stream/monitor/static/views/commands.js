// Commands that views without data suggest.

export const ADD_SOURCE = `sotto source add '{"source": "vitals", "kind": "values", "neighbors": "add-remove",
                   "epsilon": 4, "sensitivity": 1}'`;
export const SERVE = "sotto serve worker\nsotto serve budget";

/** Return a command that opens a stream on a source. */
export function openStream({ source, kind } = { source: "vitals", kind: "values" }) {
  const mechanism = kind === "records" ? '{"kind": "randomized_response", "categories": ["yes", "no"]}' : '{"kind": "above_threshold", "threshold": 100, "cutoff": 3}';
  const standing = kind === "events" ? ',\n                    "standing": {"count": "events", "window": {"size": "1h"}}' : "";
  const name = JSON.stringify(source).replaceAll("'", "'\\''");
  return `sotto stream open '{"stream": "first", "source": ${name}, "epsilon": 1,
                    "mechanism": ${mechanism}${standing}}'`;
}
