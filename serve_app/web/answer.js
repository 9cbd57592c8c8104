// Draws the answer's text. Adjacent tokens of a kind are one text node: at 200 tokens/s the page adds some text to the last
// node and some nodes a frame, however long the answer is. What stands between lines of ``` is shown as code.

import { element } from "./dom.js";

/** @import {Answer} from "./state.js" */
/** @import {Escalation} from "./types.js" */

const OPENS = /^\s*```+[^`]*$/; // what closes on its own line is no fence
const CLOSES = /^\s*```+\s*$/;

export class AnswerText {
  #where;
  /** @type {Answer | null} */
  #drawn = null;
  #rewrites = 0;
  /** Runs that are drawn, but for the last one's rest. */
  #runs = 0;
  /** Characters of the last run that are drawn. */
  #chars = 0;
  /** Where text goes: the whole, or the code that is open. @type {HTMLElement} */
  #inside;
  /** The line so far. */
  #line = "";
  /** The last text node, while it may grow. @type {{node: Text, drafted: boolean} | null} */
  #open = null;

  /** @param {HTMLElement} where */
  constructor(where) {
    this.#where = this.#inside = where;
  }

  /**
   * Draws what came since the last time, or another answer from its beginning.
   *
   * @param {Answer} answer
   */
  draw(answer) {
    if (this.#drawn !== answer || this.#rewrites !== answer.rewrites) this.#clear(answer);
    const { runs } = answer;
    for (let at = Math.max(0, this.#runs - 1); at < runs.length; at += 1) {
      const run = runs[at];
      const begins = at >= this.#runs;
      if ("seam" in run) {
        if (begins) this.#seam(run.seam);
        continue;
      }
      if (begins) this.#chars = 0;
      this.#add(run.text.slice(this.#chars), run.drafted);
      this.#chars = run.text.length;
    }
    this.#runs = runs.length;
  }

  /** @param {string} text @param {boolean} drafted */
  #add(text, drafted) {
    for (const part of text.split(/(?<=\n)/)) {
      this.#put(part, drafted);
      this.#line += part;
      if (!part.endsWith("\n")) continue;
      if ((this.#inside === this.#where ? OPENS : CLOSES).test(this.#line)) this.#turn();
      this.#line = "";
    }
  }

  /** @param {string} text @param {boolean} drafted */
  #put(text, drafted) {
    if (!text) return;
    if (this.#open?.drafted === drafted) {
      this.#open.node.appendData(text);
      return;
    }
    const node = document.createTextNode(text);
    this.#inside.append(element("span", { class: drafted && "drafted" }, node));
    this.#open = { node, drafted };
  }

  /** Begins code, or ends it. */
  #turn() {
    this.#open = null;
    if (this.#inside === this.#where) this.#where.append((this.#inside = element("code")));
    else this.#inside = this.#where;
  }

  /** @param {Escalation} seam */
  #seam({ from_tier, to_tier, reason, at_token, rewrite }) {
    this.#open = null;
    const what = rewrite ? "begins the answer anew, in place of" : "goes on for";
    this.#inside.append(element("span", { class: "seam" }, `${to_tier} ${what} ${from_tier} at token ${at_token}: ${reason}`));
  }

  /** @param {Answer} answer */
  #clear(answer) {
    this.#where.replaceChildren();
    this.#inside = this.#where;
    this.#drawn = answer;
    this.#rewrites = answer.rewrites;
    this.#runs = this.#chars = 0;
    this.#line = "";
    this.#open = null;
  }
}
