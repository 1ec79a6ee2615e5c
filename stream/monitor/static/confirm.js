// Asking before something is changed: one dialog for every action, which sends one request under one id.

import { explain } from "./api.js";
import { make, setText } from "./dom.js";
import { amount } from "./format.js";
import { may } from "./session.js";

/**
 * Open a dialog; it removes itself when it is done with.
 *
 * `fields` are controls with their labels (`element` where both are one), `prepare()` says what is wrong with them or gives null, `perform(token)` does it and
 * gives what to tell. `danger` is for what cannot be taken back; `onDone()` is called once it is done.
 */
export function confirm({ session, verb, subject, name, effect, details = [], fields = [], danger = false, needs = "operator", prepare = () => null, perform, onDone = () => {} }) {
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
    tell("Waiting for the ledger…", "waiting");
    try {
      tell(await perform(used), "done");
      isDone = true;
      button.remove();
      setText(cancel, "Done");
      cancel.focus();
    } catch (error) {
      tell(refusal(error, needs), "refused");
      setText(button, error.retriable ? "Send again" : `${verb} ${subject}`);
      button.disabled = false;
      if (error.problem?.code === "refused") {
        button.remove(); // the ledger would say the same again
      }
      freeze(error.retriable === true);
    }
  });

  document.body.append(dialog);
  dialog.showModal();
  (fields[0]?.control ?? (allowed ? button : token)).focus();
  return dialog;
}

/** What a receipt says, below what follows from it. */
export function receiptLine({ sequence, outcome, request }) {
  return `Receipt ${sequence}: ${outcome}, request ${request}`;
}

/** Whose token an action takes, as a label. */
export function tokenOf(needs) {
  return needs === "analyst" ? "Analyst's or operator's token" : "Operator's token";
}

/** The message for a missing receipt. */
export function tokenWanted(needs) {
  return needs === "analyst" ? "Give an analyst's or operator's token." : "Give the operator's token.";
}

/** Why something was not done that is for a role. */
export function refusal(error, needs = "operator") {
  const problem = error.problem ?? { status: 0, message: String(error.message) };
  switch (problem.status) {
    case 401:
      return "Unknown token (401): nothing was changed.";
    case 403:
      return problem.code === "forbidden" && problem.message.includes("SOTTO_")
        ? problem.message
        : `This token's role is not enough (403): nothing was changed. It takes an ${needs}'s.`;
    default:
      return explain(problem, amount);
  }
}
