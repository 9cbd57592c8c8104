// Draws the answer's text. A run of tokens that are all drafted, or all not, is one element: at 200 tokens/s the page adds
// some text to the last element and some elements a frame, however long the answer is.

import { element } from "./dom.js";

/** @import {Answer, Run} from "./state.js" */

export class AnswerText {
  #where;
  /** @type {Answer | null} */
  #drawn = null;
  #rewrites = 0;
  #runs = 0;
  /** @type {{node: Text, length: number} | null} the last run's text, which may still grow */
  #open = null;

  /** @param {HTMLElement} where */
  constructor(where) {
    this.#where = where;
  }

  /**
   * Draws what came since the last time, or another answer from its beginning.
   *
   * @param {Answer} answer
   */
  draw(answer) {
    if (this.#drawn !== answer || this.#rewrites !== answer.rewrites) this.#clear(answer);
    const added = document.createDocumentFragment();
    if (this.#open) {
      const run = answer.runs[this.#runs - 1];
      if ("text" in run && run.text.length > this.#open.length) {
        this.#open.node.appendData(run.text.slice(this.#open.length));
        this.#open.length = run.text.length;
      }
    }
    for (; this.#runs < answer.runs.length; this.#runs += 1) added.append(this.#element(answer.runs[this.#runs]));
    if (added.childNodes.length) this.#where.append(added);
  }

  /** @param {Run} run */
  #element(run) {
    if ("seam" in run) {
      this.#open = null;
      const { from_tier, to_tier, reason, at_token, rewrite } = run.seam;
      const what = rewrite ? "begins the answer anew, in place of" : "goes on for";
      return element("div", { class: "seam" }, `${to_tier} ${what} ${from_tier} at token ${at_token}: ${reason}`);
    }
    const node = document.createTextNode(run.text);
    this.#open = { node, length: run.text.length };
    return run.drafted ? element("span", { class: "drafted" }, node) : element("span", {}, node);
  }

  /** @param {Answer} answer */
  #clear(answer) {
    this.#where.replaceChildren();
    this.#drawn = answer;
    this.#rewrites = answer.rewrites;
    this.#runs = 0;
    this.#open = null;
  }
}
