// What a standing stream asks of each window of a live topic.

import { make } from "../dom.js";
import { given, labelled, select, textInput, ticks } from "../forms.js";

/** `show(kind, source)` brings the fields for a mechanism over a live topic, and none over any other source; `value()` reads them. */
export function standingForm() {
  const element = make("div", { class: "sheet mechanism", hidden: true });
  const where = textInput({ maxlength: "2048", placeholder: "delay >= 60" });
  const size = textInput({ maxlength: "32", value: "1h" });
  const every = textInput({ maxlength: "32", placeholder: "as long as a window" });
  const lateness = textInput({ maxlength: "32", placeholder: "0s" });
  const begins = textInput({ maxlength: "40", placeholder: "now" });
  const text = (control) => control.value.trim() || undefined;
  let counted = select([]);
  let by = null;
  let shown = "";

  function show(kind, source) {
    element.hidden = source.kind !== "events";
    if (element.hidden || shown === `${kind} ${source.source}`) {
      return;
    }
    shown = `${kind} ${source.source}`;
    const attributes = Object.entries(source.attributes ?? {});
    const sums = attributes.filter(([, domain]) => domain.kind === "integers").map(([name]) => [`sum ${name}`, `the sum of ${name}`]);
    counted = select([["events", "how many events"], ["people", "how many people"], ...sums]);
    by = kind === "histogram" ? null : ticks("For each value of", attributes.map(([name]) => [name, name]));
    element.replaceChildren(
      labelled("Counted in each window", counted),
      labelled("Of the events with", where, "a predicate; empty: all"),
      by?.element ?? "",
      labelled("Length of a window", size, "as 90s, 15m, 1h, 2d"),
      labelled("One begins every", every, "shorter than a window where windows overlap"),
      labelled("Lateness", lateness, "so long after its end a window is asked"),
      labelled("First window from", begins, "a moment with its zone, as 2026-01-01T00:00:00Z"),
    );
  }

  return {
    element,
    show,
    /** The standing query; undefined over any other source than a live topic. */
    value() {
      if (element.hidden) {
        return undefined;
      }
      const chosen = by?.values() ?? [];
      return given({
        count: counted.value.startsWith("sum ") ? { sum: counted.value.slice(4) } : counted.value,
        where: text(where),
        by: chosen.length ? chosen : undefined,
        window: given({ size: size.value.trim(), every: text(every) }),
        lateness: text(lateness),
        begins: text(begins),
      });
    },
  };
}
