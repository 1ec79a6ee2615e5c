// The view that asks for a token.

import { make, setText } from "../dom.js";
import { SIGN_IN_PATH, signIn } from "../session.js";

/** `onSignedIn(session)` is called once the monitor has accepted the token */
export function loginView(onSignedIn, message = "") {
  const token = make("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "login-outcome" });
  const outcome = make("p", { id: "login-outcome", class: "outcome", role: "alert", "data-level": "refused" }, message);
  outcome.hidden = !message;
  const button = make("button", { type: "submit", class: "solid" }, "Sign in");
  const single = SIGN_IN_PATH && make("p", {}, make("a", { class: "button", href: SIGN_IN_PATH }, "Sign in with single sign-on"));
  const form = make(
    "form",
    { class: "login card", novalidate: true },
    make("h1", {}, "Sotto"),
    make("p", {}, "Privacy budgets, streams and services of this installation."),
    single,
    make("label", { for: "token" }, single ? "Or a token" : "Token"),
    token,
    make("p", { class: "hint" }, "A viewer's token shows everything, an analyst's may also ask and open streams, an operator's also register, halt and close. It stays in this tab only."),
    outcome,
    button,
  );
  const refuse = (text) => {
    outcome.hidden = false;
    setText(outcome, text);
    token.focus();
    token.select();
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = token.value.trim();
    if (!/^[\x21-\x7e]+$/.test(given)) {
      refuse("A token consists of printable ASCII characters without spaces.");
      return;
    }
    button.disabled = true;
    try {
      onSignedIn(await signIn(given));
    } catch (error) {
      refuse(error.problem?.status === 401 ? "Unknown token (401)." : error.message);
    } finally {
      button.disabled = false;
    }
  });
  return { element: make("main", { class: "login-frame" }, form), focus: () => token.focus() };
}
