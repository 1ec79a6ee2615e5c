// Halting and closing: asked twice, with a reason and the operator's token, and the same request id on every attempt.

import { explain, send } from "./api.js";
import { make, setText } from "./dom.js";
import { amount } from "./format.js";

const ACTIONS = {
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
  return kind === "close" ? state !== "closed" && ending !== "closed" : state === "open" && ending === null;
}

/** A button that asks before it acts. `subject()` gives `{ source }` or `{ source, stream }`. */
export function actionButton(kind, subject, session) {
  const { verb, subject: what } = ACTIONS[kind];
  return make(
    "button",
    { type: "button", class: "danger", onclick: () => ask(kind, subject(), session) },
    `${verb} ${what}…`,
  );
}

/** Open the dialog; it removes itself when it is done with. */
export function ask(kind, subject, session) {
  const action = ACTIONS[kind];
  const name = subject.stream ?? subject.source;
  const request = crypto.randomUUID();
  const reason = make("input", { id: "action-reason", name: "reason", maxlength: "1024", autocomplete: "off", placeholder: "for whoever reads the ledger" });
  const token = make("input", { id: "action-token", name: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const outcome = make("p", { class: "outcome", role: "alert", hidden: true });
  const confirm = make("button", { type: "submit", class: "danger solid" }, `${action.verb} ${action.subject}`);
  const cancel = make("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const isOperator = session.role === "operator";
  const form = make(
    "form",
    { novalidate: true },
    make("h2", { id: "action-title" }, `${action.verb} ${action.subject} `, make("span", { class: "name" }, name), "?"),
    make("p", {}, action.effect),
    make("label", { for: "action-reason" }, "Reason", make("span", { class: "hint" }, " (optional, kept in the ledger)")),
    reason,
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
    if (reason.value.trim()) {
      body.reason = reason.value.trim();
    }
    // What is sent again under the same id must be the same request.
    reason.readOnly = true;
    confirm.disabled = true;
    tell("Waiting for the ledger…", "waiting");
    try {
      const receipt = await send(action.path, used, { method: "POST", body });
      const done = receipt.state === "closed" ? "It is closed already: nothing was left to do." : action.done;
      tell(`${done}\nReceipt ${receipt.sequence}: ${receipt.outcome}, request ${receipt.request}`, "done");
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
      reason.readOnly = error.retriable === true;
    }
  });

  document.body.append(dialog);
  dialog.showModal();
  reason.focus();
  return dialog;
}

function refusal(error) {
  const problem = error.problem ?? { status: 0, message: String(error.message) };
  switch (problem.status) {
    case 401:
      return "Nobody's token (401): nothing was changed.";
    case 403:
      return "This is the viewer's token (403): nothing was changed. It takes the operator's.";
    default:
      return explain(problem, amount);
  }
}
