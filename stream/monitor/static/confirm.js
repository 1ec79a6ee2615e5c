// The confirmation dialog of all actions.

import { explain } from "./api.js";
import { make, setText } from "./dom.js";
import { amount } from "./format.js";
import { may } from "./session.js";

const UNKNOWN = "\nThe request may still take effect, even if you leave. “Send again” repeats it with the same id, and it takes effect at most once.";

/**
 * Open a dialog; it is removed when it is closed.
 *
 * `fields` are controls with labels (`element` if one element has both), `prepare()` returns the problem of the fields or null, `perform(token, request)`
 * sends the request under this id and returns the text to show. `danger` marks actions that cannot be undone; `onDone()` is called when the dialog closes after a success, `onRefused()` when the ledger refuses.
 */
export function confirm({ session, verb, subject, name, effect, details = [], fields = [], danger = false, needs = "operator", prepare = () => null, perform, onDone = () => {}, onRefused = () => {} }) {
  const allowed = may(session, needs);
  const token = make("input", { id: "action-token", name: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const outcome = make("p", { class: "outcome", role: "alert", hidden: true });
  const button = make("button", { type: "submit", class: danger ? "danger solid" : "solid" }, `${verb} ${subject}`);
  const cancel = make("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = make(
    "form",
    { novalidate: true },
    make("h2", { id: "action-title" }, `${verb} ${subject} `, make("span", { class: "name" }, name), "?"),
    make("p", {}, effect),
    details,
    fields.map(({ id, text, hint, control, element }) => element ?? [make("label", { for: id }, text, make("span", { class: "hint" }, hint)), control]).flat(),
    !allowed && make("label", { for: "action-token" }, tokenOf(needs), make("span", { class: "hint" }, " (used once, not kept)")),
    !allowed && token,
    outcome,
    make("div", { class: "buttons" }, cancel, button),
  );
  const dialog = make("dialog", { "aria-labelledby": "action-title" }, form);
  let isDone = false;
  let request = crypto.randomUUID();
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (isDone) {
      onDone();
    }
  });

  function tell(text, level) {
    outcome.hidden = false;
    outcome.dataset.level = level;
    setText(outcome, text);
  }

  function freeze(frozen) {
    for (const { control } of fields) {
      control[control.type === "checkbox" ? "disabled" : "readOnly"] = frozen;
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const used = allowed ? session.token : token.value.trim();
    if (!used) {
      tell(tokenWanted(needs), "refused");
      token.focus();
      return;
    }
    const wrong = prepare();
    if (wrong) {
      tell(wrong, "refused");
      fields[0]?.control.focus();
      return;
    }
    // A request that is sent again with the same id must be unchanged.
    freeze(true);
    button.disabled = true;
    setText(cancel, "Leave"); // the request cannot be withdrawn
    tell("Waiting for the ledger… The request takes effect even if you leave.", "waiting");
    try {
      tell(await perform(used, request), "done");
      isDone = true;
      button.remove();
      setText(cancel, "Done");
      cancel.focus();
    } catch (error) {
      const isUnknown = error.retriable && error.problem.status !== 429;
      tell(`${refusal(error, needs)}${isUnknown ? UNKNOWN : ""}`, "refused");
      setText(cancel, isUnknown ? "Leave" : "Cancel");
      setText(button, error.retriable ? "Send again" : `${verb} ${subject}`);
      button.disabled = false;
      if (error.problem?.code === "refused") {
        request = crypto.randomUUID(); // the ledger would refuse the same request again
        onRefused();
        fields.length ? setText(button, "Try again") : button.remove();
      }
      freeze(error.retriable === true);
    }
  });

  document.body.append(dialog);
  dialog.showModal();
  (fields[0]?.control ?? (allowed ? button : token)).focus();
  return dialog;
}

/** Format a receipt; the line is shown below the action's effect. */
export function receiptLine({ sequence, outcome, request }) {
  return `Receipt ${sequence}: ${outcome}, request ${request}`;
}

/** The label of the token field. */
export function tokenOf(needs) {
  return needs === "analyst" ? "Analyst's or operator's token" : "Operator's token";
}

/** The message for a missing token. */
export function tokenWanted(needs) {
  return needs === "analyst" ? "Give an analyst's or operator's token." : "Give the operator's token.";
}

/** Describe why an action that needs a role failed. */
export function refusal(error, needs = "operator") {
  const problem = error.problem ?? { status: 0, message: String(error.message) };
  switch (problem.status) {
    case 401:
      return "Unknown token (401): nothing was changed.";
    case 403:
      return problem.message.startsWith("this is for ")
        ? `This token's role is not enough (403): nothing was changed. Use an ${needs}'s token.`
        : problem.message;
    default:
      return explain(problem, amount);
  }
}
