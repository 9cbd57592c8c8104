// Tells a screen reader what happens: states, and the answer by finished sentences. Each token would be noise.

import { element } from "./dom.js";

/** @import {Answer} from "./state.js" */

const SENTENCE = /[\s\S]*?(?:[.!?…](?=\s)|[。！？]|\n)\s*/y;
const KEPT = 40;

/**
 * Returns the finished sentences of a text from a place on, and where they end.
 *
 * @param {string} text
 * @param {number} from
 * @returns {{said: string, upTo: number}}
 */
export function finishedSentences(text, from) {
  let upTo = from;
  for (;;) {
    SENTENCE.lastIndex = upTo;
    const found = SENTENCE.exec(text);
    if (!found) return { said: text.slice(from, upTo).trim(), upTo };
    upTo = SENTENCE.lastIndex;
  }
}

export class Announcer {
  #where;
  #upTo = 0;
  #saidMs = -Infinity;

  /** @param {HTMLElement} where a polite live region */
  constructor(where) {
    this.#where = where;
  }

  /** A new answer begins. */
  begin() {
    this.#upTo = 0;
    this.#saidMs = -Infinity;
  }

  /** @param {string} words */
  say(words) {
    if (!words) return;
    this.#where.append(element("p", {}, words));
    while (this.#where.childElementCount > KEPT) this.#where.firstElementChild?.remove();
  }

  /**
   * Says the sentences that are finished, at most once a second: a fast answer is not chopped up. At its end, all.
   *
   * @param {Answer} answer
   * @param {number} nowMs
   */
  follow(answer, nowMs) {
    const { ended } = answer;
    if (!ended && nowMs - this.#saidMs < 1000) return;
    const { text } = answer;
    if (this.#upTo > text.length) this.#upTo = 0; // the text was withdrawn
    const { said, upTo } = finishedSentences(text, this.#upTo);
    const rest = ended ? text.slice(upTo).trim() : "";
    if (!said && !rest) return;
    this.say([said, rest].filter(Boolean).join(" "));
    this.#upTo = ended ? text.length : upTo;
    this.#saidMs = nowMs;
  }
}
