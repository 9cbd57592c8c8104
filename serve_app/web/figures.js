// The figures of an answer: speed while it comes, and at its end what it took and what it saved.

import { setText } from "./dom.js";
import { UNKNOWN, amount, counted, duration, figure, money, percent } from "./format.js";
import { liveRate } from "./state.js";

/** @import {Answer} from "./state.js" */

/** The figures and what is said below each, by the ids in index.html. */
export class Figures {
  #where;
  #note;

  /**
   * @param {HTMLElement} where has an element with `data-figure` for each, with a `strong` and a `small` in it
   * @param {HTMLElement} note says against what is compared
   */
  constructor(where, note) {
    this.#where = where;
    this.#note = note;
  }

  /**
   * @param {Answer} answer
   * @param {number} nowMs since the request
   */
  draw(answer, nowMs) {
    const { metrics } = answer;
    const expected = answer.decision?.tiers.find((tier) => tier.taken);
    this.#set("ttft", duration(metrics?.ttft_ms ?? answer.firstTokenMs), queued(answer));
    const rate = metrics ? metrics.tokens_per_sec : liveRate(answer.steps, answer.endedMs ?? nowMs);
    this.#set("rate", rate === null ? UNKNOWN : figure(rate), metrics ? batch(metrics.mean_batch) : "over the last second");
    this.#set("tokens", answer.tokens.toLocaleString("en"), metrics ? `prompt ${counted(metrics.prompt_tokens, "token")}` : "");
    this.#set("drafts", ...drafts(answer));
    const saved = metrics?.savings;
    this.#set("cost", metrics ? money(metrics.cost_usd) : UNKNOWN, saved ? savedWords(money(saved.cost_usd)) : ahead(expected && money(expected.cost_usd.expected)));
    this.#set("energy", metrics ? amount(metrics.energy.wh, "Wh") : UNKNOWN, saved ? savedWords(amount(saved.wh, "Wh")) : ahead(expected && amount(expected.energy_wh.expected, "Wh")));
    this.#set("water", metrics ? amount(metrics.water_l, "L") : UNKNOWN, saved ? savedWords(amount(saved.water_l, "L")) : "");
    this.#set("co2", metrics ? amount(metrics.co2_g, "g") : UNKNOWN, saved ? savedWords(amount(saved.co2_g, "g")) : "");
    setText(this.#note, metrics ? savingsNote(metrics) : "");
  }

  /** @param {string} name @param {string} value @param {string} note */
  #set(name, value, note) {
    const [strong, small] = this.#where.querySelectorAll(`[data-figure="${name}"] :is(strong, small)`);
    setText(strong, value);
    setText(small, note);
  }
}

/** @param {Answer} answer */
function queued(answer) {
  return answer.metrics?.queue_ms ? `${duration(answer.metrics.queue_ms)} of it waiting` : "";
}

/** @param {number} mean */
function batch(mean) {
  return mean >= 1.05 ? `beside ${figure(mean - 1)} others` : "alone on its engine";
}

/** @param {Answer} answer @returns {[string, string]} */
function drafts(answer) {
  const spec = answer.metrics?.spec;
  const verified = spec ? spec.draft_tokens : answer.steps.reduce((sum, step) => sum + step.k, 0);
  const accepted = spec ? spec.accepted_tokens : answer.draftedTokens;
  if (!verified) {
    const why = answer.config?.spec_decoding.reason ?? spec?.why_stopped ?? "";
    return [UNKNOWN, answer.config ? why || "no drafts" : ""];
  }
  return [percent(accepted / verified), `${accepted} of ${verified} drafts`];
}

/** @param {string | undefined} value */
function ahead(value) {
  return value ? `${value} expected` : "";
}

/** @param {string} value */
function savedWords(value) {
  return `saved ${value}`;
}

/** @param {import("./types.js").Metrics} metrics */
function savingsNote({ savings, energy, place }) {
  const than = `one ${savings.counterfactual.gpu} with as many requests`;
  const nearlyAll = savings.percent >= 99.95; // would be rounded to all of it
  const share = nearlyAll ? "over 99.9 %" : `${figure(Math.abs(savings.percent))} %`;
  const compared = savings.percent < 0 ? `This took ${share} more energy than ${than}` : `This took ${share} less energy than ${than}`;
  return `${compared} is taken to need. Energy is ${energy.source}; water and CO₂ follow from it by the factors of the site “${place.site}” and the grid “${place.grid}”.`;
}
