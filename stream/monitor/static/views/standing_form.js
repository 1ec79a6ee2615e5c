// The standing query of a stream on a live topic.

import { make } from "../dom.js";
import { given, labelled, numberInput, select, textInput, ticks, typed, typedNumbers } from "../forms.js";
import { isNumeric, isOrdered } from "./where.js";

const ANSWERING = new Set(["laplace", "histogram"]); // mechanisms that answer quantiles

/** `show(kind, source)` shows the fields for a mechanism on a live topic and hides them for other sources; `value()` reads them. */
export function standingForm() {
  const element = make("div", { class: "sheet mechanism", hidden: true });
  const where = textInput({ maxlength: "2048", placeholder: "delay >= 60" });
  const size = textInput({ maxlength: "32", value: "1h" });
  const every = textInput({ maxlength: "32", placeholder: "the window length" });
  const lateness = textInput({ maxlength: "32", placeholder: "0s" });
  const begins = textInput({ maxlength: "40", placeholder: "now" });
  const text = (control) => control.value.trim() || undefined;
  const top = numberInput({ placeholder: "all" });
  const q = textInput({ maxlength: "300", value: "0.5" });
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
    const sums = attributes.filter(([, domain]) => isNumeric(domain)).map(([name]) => [`sum ${name}`, `sum of ${name}`]);
    const ranked = attributes.filter(([, domain]) => isOrdered(domain));
    const quantiles = ANSWERING.has(kind) ? ranked.map(([name]) => [`quantile ${name}`, `quantiles of ${name}`]) : [];
    counted = select([["events", "number of events"], ["people", "number of people"], ...sums, ...quantiles]);
    const largest = labelled("Largest groups only", top, "number of groups in an answer");
    const share = labelled("Share of the events below", q, "0.5 for the median; several separated by commas");
    const choose = () => {
      const ranks = counted.value.startsWith("quantile ");
      share.hidden = !ranks;
      largest.hidden = ranks;
    };
    counted.addEventListener("change", choose);
    choose();
    const texts = Object.keys(source.texts ?? {});
    const declared = attributes.map(([name]) => name);
    const groups = kind === "unknown_groups" ? texts : kind === "running_count" ? [...declared, ...texts] : declared;
    by = kind === "histogram" ? null : ticks("Grouped by", groups.map((name) => [name, name]));
    element.replaceChildren(
      labelled("Asked of each window", counted),
      share,
      labelled("Events where", where, "a predicate; empty for all events"),
      by?.element ?? largest,
      labelled("Window length", size, "for example 90s, 15m, 1h or 2d"),
      labelled("A window starts every", every, "shorter than the window length if windows overlap"),
      labelled("Lateness", lateness, "delay between a window's end and its question"),
      labelled("First window starts at", begins, "a time with its zone, for example 2026-01-01T00:00:00Z"),
    );
  }

  function most() {
    return by === null ? typed(top) : undefined;
  }

  /** Return the fields of the question, without its windows. */
  function question() {
    const [form, name] = counted.value.split(/ (.*)/s);
    if (form === "sum") {
      return given({ count: { sum: name }, top: most() });
    }
    if (form !== "quantile") {
      return given({ count: form, top: most() });
    }
    return { quantile: name, q: typedNumbers(q) };
  }

  return {
    element,
    show,
    /** Return the standing query; undefined if the source is no live topic. */
    value() {
      if (element.hidden) {
        return undefined;
      }
      const chosen = by?.values() ?? [];
      return given({
        ...question(),
        where: text(where),
        by: chosen.length ? chosen : undefined,
        window: given({ size: size.value.trim(), every: text(every) }),
        lateness: text(lateness),
        begins: text(begins),
      });
    },
  };
}
