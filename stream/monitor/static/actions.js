// Extending, halting and closing: asked twice, with the operator's token, and the same request id on every attempt.

import { explain, send } from "./api.js";
import { make, setText } from "./dom.js";
import { amount, count } from "./format.js";

const REASON = { name: "reason", text: "Reason", hint: " (optional, kept in the ledger)", attributes: { maxlength: "1024", placeholder: "for whoever reads the ledger" } };
const EPSILON = { name: "epsilon", text: "ε to add", hint: " (no more is taken than the answers cost)", attributes: { inputmode: "decimal", placeholder: "0.5" }, number: true };

const ACTIONS = {
  extend: {
    verb: "Extend",
    path: "/api/extensions",
    subject: "stream",
    field: EPSILON,
    effect: "It may give as many further charged answers as this pays for, each at the price of those that it was opened with. All that it has measured stays.",
    done: "The ledger has granted it; its worker follows within moments.",
  },
  halt: {
    verb: "Halt",
    path: "/api/halts",
    subject: "stream",
    effect: "It stops answering, for good. What was granted to it stays granted; to get back what it has not spent, close it instead.",
    done: "The ledger has halted it; its worker follows within moments.",
  },
  close: {
    verb: "Close",
    path: "/api/closes",
    subject: "stream",
    effect: "It stops answering, for good, and what it has not spent goes back to its source. The name cannot be used again.",
    done: "It is closing; what it has not spent goes back once its worker has reported its last totals.",
  },
  halt_source: {
    verb: "Halt",
    path: "/api/halts",
    subject: "source",
    effect: "All its streams stop answering, for good, and no stream can be opened on it again.",
    done: "The ledger has halted it; the workers of its streams follow within moments.",
  },
};

/** Whether an action still changes anything about a stream. */
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

/** A button that asks before it acts. `subject()` gives `{ source }` or `{ source, stream }`. */
export function actionButton(kind, subject, session) {
  const { verb, subject: what } = ACTIONS[kind];
  return make(
    "button",
    { type: "button", class: kind === "extend" ? "" : "danger", onclick: () => ask(kind, subject(), session) },
    `${verb} ${what}…`,
  );
}

/** Open the dialog; it removes itself when it is done with. */
export function ask(kind, subject, session) {
  const action = ACTIONS[kind];
  const name = subject.stream ?? subject.source;
  const request = crypto.randomUUID();
  const { field = REASON } = action;
  const given = make("input", { id: "action-given", name: field.name, autocomplete: "off", required: field.number === true, ...field.attributes });
  const token = make("input", { id: "action-token", name: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const outcome = make("p", { class: "outcome", role: "alert", hidden: true });
  const confirm = make("button", { type: "submit", class: kind === "extend" ? "solid" : "danger solid" }, `${action.verb} ${action.subject}`);
  const cancel = make("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const isOperator = session.role === "operator";
  const form = make(
    "form",
    { novalidate: true },
    make("h2", { id: "action-title" }, `${action.verb} ${action.subject} `, make("span", { class: "name" }, name), "?"),
    make("p", {}, action.effect),
    make("label", { for: "action-given" }, field.text, make("span", { class: "hint" }, field.hint)),
    given,
    !isOperator && make("label", { for: "action-token" }, "Operator's token", make("span", { class: "hint" }, " (used once, not kept)")),
    !isOperator && token,
    outcome,
    make("div", { class: "buttons" }, cancel, confirm),
  );
  const dialog = make("dialog", { "aria-labelledby": "action-title" }, form);
  dialog.addEventListener("close", () => dialog.remove());

  function tell(text, level) {
    outcome.hidden = false;
    outcome.dataset.level = level;
    setText(outcome, text);
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const used = isOperator ? session.token : token.value.trim();
    if (!used) {
      tell("Give the operator's token.", "refused");
      token.focus();
      return;
    }
    const body = { kind, request, ...subject };
    const text = given.value.trim();
    if (field.number && !(Number(text) > 0)) {
      tell("Give a number above 0.", "refused");
      given.focus();
      return;
    }
    if (text) {
      body[field.name] = field.number ? Number(text) : text;
    }
    // What is sent again under the same id must be the same request.
    given.readOnly = true;
    confirm.disabled = true;
    tell("Waiting for the ledger…", "waiting");
    try {
      const receipt = await send(action.path, used, { method: "POST", body });
      tell(`${told(action, receipt)}\nReceipt ${receipt.sequence}: ${receipt.outcome}, request ${receipt.request}`, "done");
      confirm.remove();
      setText(cancel, "Done");
      cancel.focus();
    } catch (error) {
      tell(refusal(error), "refused");
      setText(confirm, error.retriable ? "Send again" : `${action.verb} ${action.subject}`);
      confirm.disabled = false;
      if (error.problem?.code === "refused") {
        confirm.remove(); // the ledger would say the same again
      }
      given.readOnly = error.retriable === true;
    }
  });

  document.body.append(dialog);
  dialog.showModal();
  given.focus();
  return dialog;
}

/** What became of a request that the ledger has done. */
function told(action, { state, answers = null, granted = null }) {
  if (answers !== null) {
    return `${count(answers)} more charged answers for ${amount(granted)}. ${action.done}`;
  }
  return state === "closed" ? "It is closed already: nothing was left to do." : action.done;
}

function refusal(error) {
  const problem = error.problem ?? { status: 0, message: String(error.message) };
  switch (problem.status) {
    case 401:
      return "Nobody's token (401): nothing was changed.";
    case 403:
      return "This token's role is not enough (403): nothing was changed. It takes an operator's.";
    default:
      return explain(problem, amount);
  }
}
