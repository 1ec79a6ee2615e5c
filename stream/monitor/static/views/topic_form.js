// The fields of a live topic besides its attributes: topic, person, time, contribution bounds, event fields and clock.

import { given, labelled, numberInput, select, textInput, typed } from "../forms.js";

const CLOCKS = [["broker", "the broker's timestamps"], ["marks", "watermarks in the topic, for replays"]];

/** `elements` are the fields; `value()` reads them. */
export function topicForm() {
  const topic = textInput({ maxlength: "249", placeholder: "ops.departures" });
  const person = textInput({ maxlength: "256", placeholder: "user.id" });
  const time = textInput({ maxlength: "256", placeholder: "at" });
  const contribution = numberInput({ placeholder: "1" });
  const total = numberInput({ placeholder: "none" });
  const fields = textInput({ placeholder: "delay: flight.delay, gate: flight.gate" });
  const clock = select(CLOCKS);
  const ahead = textInput({ maxlength: "32", placeholder: "5m" });
  const idle = textInput({ maxlength: "32", placeholder: "5s" });
  const text = (control) => control.value.trim() || undefined;

  function places() {
    const pairs = fields.value.split(",").map((one) => one.split(":").map((part) => part.trim())).filter(([name]) => name);
    return pairs.length ? Object.fromEntries(pairs.map(([name, place]) => [name, place ?? ""])) : undefined;
  }

  return {
    elements: [
      labelled("Topic", topic, "of JSON events, keyed by the person"),
      labelled("Field of the person", person, "its name, or its path, as user.id"),
      labelled("Field of the time", time, "ISO 8601 with a zone, or milliseconds since 1970"),
      labelled("Events that count", contribution, "maximum of one person in a window of a stream"),
      labelled("In all windows together", total, "maximum events of one person in a running count; empty: no running count may be opened"),
      labelled("Fields of attributes", fields, "for attributes whose field is nested or has another name"),
      labelled("Windows close by", clock),
      labelled("Maximum ahead of the clock", ahead, "later events are refused"),
      labelled("Delay of a silent partition", idle, "a partition without events follows the clock with this delay"),
    ],
    value: () =>
      given({
        topic: topic.value.trim(),
        person: person.value.trim(),
        time: time.value.trim(),
        contribution: typed(contribution),
        total: typed(total),
        fields: places(),
        clock: clock.value,
        ahead: text(ahead),
        idle: text(idle),
      }),
  };
}
