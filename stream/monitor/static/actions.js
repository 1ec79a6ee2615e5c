// Dialogs that extend, halt and close: each asks for confirmation.

import { send } from "./api.js";
import { confirm, receiptLine } from "./confirm.js";
import { make, setText } from "./dom.js";
import { amount, bound, count, plural } from "./format.js";

const REASON = { name: "reason", text: "Reason", hint: " (optional, kept in the ledger)", attributes: { maxlength: "1024", placeholder: "shown in the audit trail" } };
const EPSILON = { name: "epsilon", text: "ε to add", hint: " (no more is taken than the answers cost)", attributes: { inputmode: "decimal", placeholder: "0.5" }, number: true, required: true };
const DELTA = { name: "delta", text: "δ to add", hint: " (optional; with it, a large ε pays for more answers if charges are independent)", attributes: { inputmode: "decimal", placeholder: "none" }, number: true };

const ACTIONS = {
  extend: {
    verb: "Extend",
    path: "/api/extensions",
    needs: "analyst",
    subject: "stream",
    fields: [EPSILON, DELTA],
    effect: "It may give as many further charged answers as this pays for, with the same noise. It keeps its measurements.",
    done: "The ledger has granted it; its worker follows within moments.",
  },
  halt: {
    verb: "Halt",
    path: "/api/halts",
    subject: "stream",
    fields: [REASON],
    effect: "It stops answering permanently, and its grant stays reserved. To get a refund of the rest, close it instead.",
    done: "The ledger has halted it; its worker follows within moments.",
  },
  close: {
    verb: "Close",
    path: "/api/closes",
    needs: "analyst",
    subject: "stream",
    fields: [REASON],
    effect: "It stops answering, for good, and the unspent rest of its grant is refunded. The name cannot be used again.",
    done: "It is closing; the refund follows once its worker has reported its last totals.",
  },
  halt_source: {
    verb: "Halt",
    path: "/api/halts",
    subject: "source",
    fields: [REASON],
    effect: "All its streams stop answering, for good, and no stream can be opened on it again.",
    done: "The ledger has halted it; the workers of its streams follow within moments.",
  },
};

/** True if an action would still change a stream in this state. */
export function applies(kind, { state, ending = null }) {
  switch (kind) {
    case "close":
      return state !== "closed" && ending !== "closed";
    case "extend":
      return (state === "open" || state === "exhausted") && ending === null;
    default:
      return state === "open" && ending === null;
  }
}

/** A button that opens the action's dialog. `subject()` returns `{ source }` or `{ source, stream }`; `price()` is the ε of a further answer. */
export function actionButton(kind, subject, session, price = () => null) {
  const { verb, subject: what } = ACTIONS[kind];
  return make(
    "button",
    { type: "button", class: kind === "extend" ? "" : "danger", onclick: () => ask(kind, subject(), session, price()) },
    `${verb} ${what}…`,
  );
}

/** Open the dialog of an action. */
function ask(kind, subject, session, price) {
  const action = ACTIONS[kind];
  const fields = action.fields.map((one) => ({
    ...one,
    id: `action-${one.name}`,
    control: make("input", { id: `action-${one.name}`, name: one.name, autocomplete: "off", required: one.required === true, ...one.attributes }),
  }));
  return confirm({
    session,
    verb: action.verb,
    subject: action.subject,
    name: subject.stream ?? subject.source,
    effect: action.effect,
    details: kind === "extend" && price !== null ? [describePrice(price, fields[0].control)] : [],
    fields,
    danger: kind !== "extend",
    needs: action.needs ?? "operator",
    prepare: () => fields.map(({ text, number, required, control }) => (number ? wrongNumber(text, control.value.trim(), required) : null)).find(Boolean) ?? null,
    async perform(token, request) {
      const given = fields.filter(({ control }) => control.value.trim()).map(({ name, number, control }) => [name, number ? Number(control.value) : control.value.trim()]);
      const receipt = await send(action.path, token, { method: "POST", body: { kind, request, ...subject, ...Object.fromEntries(given) } });
      return `${describeEffect(action, receipt)}\n${receiptLine(receipt)}`;
    },
  });
}

/** A line with the price of a charged answer, and with the number of answers for which the given ε pays. */
function describePrice(price, control) {
  const line = make("p", { class: "quiet", role: "status" });
  function show() {
    const answers = Math.floor(Number(control.value) / price + 1e-9); // the ledger divides exactly
    setText(line, `Each charged answer costs ε ${bound(price)}${answers > 0 ? `: this ε pays for about ${count(answers)}` : ""}.`);
  }
  control.addEventListener("input", show);
  show();
  return line;
}

function wrongNumber(text, given, required) {
  const isValid = given ? Number(given) > 0 : !required;
  return isValid ? null : `${text.split(" (")[0]}: give a number above 0, as 0.5${required ? "" : ", or nothing"}.`;
}

/** Describe the effect of a request from its receipt. */
function describeEffect(action, { state, answers = null, granted = null }) {
  if (answers !== null) {
    return `${plural(answers, "more charged answer")} for ${amount(granted)}. ${action.done}`;
  }
  return state === "closed" ? "It is closed already: nothing was left to do." : action.done;
}
