// The answers of this visit. They are in memory only, and go when the page is left.

import { element, setText } from "./dom.js";
import { amount, counted, duration, money } from "./format.js";
import { troubleTitle } from "./words.js";

/** @import {Answer} from "./state.js" */

const KEPT = 50;

export class History {
  #list;
  #sum;
  #empty;
  #show;
  /** @type {Answer[]} newest first */
  #answers = [];

  /**
   * @param {{list: HTMLElement, sum: HTMLElement, empty: HTMLElement}} where
   * @param {(answer: Answer) => void} show shows an answer again
   */
  constructor({ list, sum, empty }, show) {
    this.#list = list;
    this.#sum = sum;
    this.#empty = empty;
    this.#show = show;
  }

  /** @param {Answer} answer that begins */
  add(answer) {
    this.#answers = [answer, ...this.#answers].slice(0, KEPT);
    this.draw(answer);
  }

  /** @param {Answer} shown */
  draw(shown) {
    this.#empty.hidden = this.#answers.length > 0;
    const made = this.#answers.map((answer) => {
      const button = element(
        "button",
        { type: "button", class: "quiet", ...(answer === shown && { "aria-current": "true" }) },
        element("span", { class: "line" }, answer.request.prompt),
        element("span", { class: "muted" }, took(answer)),
      );
      button.addEventListener("click", () => this.#show(answer));
      return element("li", {}, button);
    });
    this.#list.replaceChildren(...made);
    setText(this.#sum, this.#total());
  }

  #total() {
    const bills = this.#answers.flatMap(({ metrics }) => metrics ?? []);
    if (!bills.length) return "";
    const sum = (/** @type {(bill: (typeof bills)[number]) => number} */ of) => bills.reduce((all, bill) => all + of(bill), 0);
    const wh = sum(({ energy }) => energy.wh);
    const saved = sum(({ savings }) => savings.wh);
    return `${counted(bills.length, "answer")}: ${money(sum(({ cost_usd }) => cost_usd))}, ${amount(wh, "Wh")}, saved ${amount(saved, "Wh")}`;
  }
}

/** @param {Answer} answer */
function took(answer) {
  const tier = answer.tier ? `${answer.tier}, ` : "";
  if (answer.trouble) return `${tier}${troubleTitle(answer.trouble).toLowerCase()}`;
  if (!answer.ended) return `${tier}under way`;
  if (!answer.metrics) return `${tier}stopped after ${counted(answer.tokens, "token")}`;
  return `${tier}${counted(answer.tokens, "token")}, ${duration(answer.metrics.total_ms)}, ${money(answer.metrics.cost_usd)}`;
}
