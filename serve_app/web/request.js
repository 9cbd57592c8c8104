// The body of a request, from the form.

import { byId } from "./dom.js";

/** @import {InferenceRequest} from "./types.js" */
/** @import {Dial} from "./dial.js" */

/** The prompt, the limits, the goal, the drafts, and what happens where the answer goes wrong. The dials are `Dial`'s. */
export class RequestForm {
  #dial;
  #form = byId("form", HTMLFormElement);
  #prompt = byId("prompt", HTMLTextAreaElement);
  #goal = byId("goal", HTMLSelectElement);
  #escalate = byId("escalate", HTMLSelectElement);
  #maxTokens = byId("max_tokens", HTMLInputElement);
  #drafts = byId("drafts", HTMLInputElement);
  #reasoning = byId("reasoning", HTMLInputElement);
  #limits = /** @type {HTMLInputElement[]} */ ([...document.querySelectorAll("input[data-limit]")]);
  #set = byId("options-set", HTMLElement);

  /** @param {Dial} dial */
  constructor(dial) {
    this.#dial = dial;
    this.#form.addEventListener("input", () => this.draw());
    this.draw();
  }

  /** The body; null if a field is wrong, which the browser then shows. @returns {InferenceRequest | null} */
  read() {
    const details = this.#form.querySelector("details");
    if (details && this.#wrongOption()) details.open = true; // a hidden field cannot show what is wrong with it
    if (!this.#form.reportValidity()) return null;
    const { mode, power, speed } = this.#dial;
    const constraints = Object.fromEntries(this.#limits.filter(({ value }) => value).map((limit) => [limit.id, limit.valueAsNumber]));
    return {
      prompt: this.#prompt.value,
      mode,
      speed,
      ...(mode === "manual" && { power }),
      ...(mode === "auto" && this.#goal.value && { goal: this.#goal.value }),
      ...(Object.keys(constraints).length && { constraints }),
      ...(this.#maxTokens.value && { max_tokens: this.#maxTokens.valueAsNumber }),
      ...(this.#drafts.value && { spec: { k: this.#drafts.valueAsNumber } }),
      ...this.#escalation(),
      ...(!this.#reasoning.checked && { reasoning: false }),
    };
  }

  /** Whether the request lets the router's agent explain the choice. */
  get explains() {
    return this.#reasoning.checked;
  }

  /** @returns {{escalate?: string, rewrite?: boolean}} */
  #escalation() {
    const { value } = this.#escalate;
    if (value === "auto" || value === "rewrite") return { escalate: "auto", rewrite: value === "rewrite" };
    return value ? { escalate: value } : {};
  }

  #wrongOption() {
    return [...this.#limits, this.#maxTokens, this.#drafts].some((field) => !field.validity.valid);
  }

  /** Says how many options are set, and that a goal needs AUTO. */
  draw() {
    this.#goal.disabled = this.#dial.mode === "manual";
    const fields = [...this.#limits, this.#maxTokens, this.#drafts].filter(({ value }) => value).length;
    const chosen = this.#escalate.value ? 1 : 0;
    const set = fields + chosen + (this.#goal.value && !this.#goal.disabled ? 1 : 0) + (this.#reasoning.checked ? 0 : 1);
    this.#set.textContent = set ? `${set} set` : "";
  }
}
