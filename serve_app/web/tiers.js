// The four tiers as they are now.

import { element } from "./dom.js";
import { duration, figure, money } from "./format.js";
import { gpuWords } from "./words.js";

/** @import {Tier, TierName} from "./types.js" */
/** @typedef {Tier["state"]} TierState */

/** Each state has a sign of its own: a colour alone would not do. @type {Record<TierState, string>} */
const SIGNS = { failed: "✕", busy: "▲", warm: "●", loading: "◔", provisioning: "◌", cold: "○" };

export class TierBoard {
  #where;
  #clock;
  /** When a tier that loads or is provisioned was first seen so, by its name, ms. @type {Map<TierName, number>} */
  #startingSince = new Map();
  #drawn = "";

  /**
   * @param {HTMLElement} where
   * @param {() => number} clock ms
   */
  constructor(where, clock = () => performance.now()) {
    this.#where = where;
    this.#clock = clock;
  }

  /**
   * @param {readonly Tier[]} tiers
   * @param {TierName | string | null} picked the tier that the dial points at
   */
  draw(tiers, picked) {
    const starting = tiers.some(({ state }) => state === "loading" || state === "provisioning");
    // What did not change is not drawn anew, so that a selection and a tooltip stay. A start moves on by itself.
    const drawing = JSON.stringify([tiers, picked, starting && this.#clock()]);
    if (drawing === this.#drawn) return;
    this.#drawn = drawing;
    this.#where.style.setProperty("--bands", tiers.map(({ power }) => `${power[1] - power[0] + 1}fr`).join(" "));
    this.#where.replaceChildren(...tiers.map((tier) => this.#card(tier, tier.name === picked)));
  }

  /** @param {Tier} tier @param {boolean} picked */
  #card(tier, picked) {
    const { state } = tier;
    const entry = tier.chain.find(({ name }) => name === tier.active_entry) ?? tier.chain[0];
    const left = tier.chain.filter(({ name, failure }) => failure && name !== tier.active_entry);
    const card = element(
      "li",
      { class: `tier ${state}`, ...(picked && { "aria-current": "true" }) },
      element(
        "p",
        { class: "tier-head" },
        element("strong", {}, tier.name),
        element("span", { class: "muted band" }, `${tier.power[0]}–${tier.power[1]}`),
        element("span", { class: "state" }, element("span", { "aria-hidden": "true" }, SIGNS[state]), ` ${this.#stateWords(tier, state)}`),
      ),
      element("p", { class: "model", title: entry.target }, entry.target),
      element("p", { class: "muted facts" }, facts(tier, state).join(" · ")),
      element("p", { class: "muted facts" }, `entry ${entry.name}${entry.method ? `, drafts by ${entry.method}` : ", no drafts"}`),
    );
    const progress = this.#progress(tier, state);
    if (progress) card.append(progress);
    if (state === "failed" && tier.reason) card.append(element("p", { class: "warn" }, tier.reason));
    else if (tier.reason && state !== "warm" && state !== "busy") card.append(element("p", { class: "muted facts" }, tier.reason));
    for (const { name, failure } of left) card.append(element("p", { class: "warn" }, `${name} was left: ${failure}`));
    return card;
  }

  /** @param {Tier} tier @param {TierState} state */
  #stateWords(tier, state) {
    if (state !== "loading" && state !== "provisioning") {
      this.#startingSince.delete(tier.name);
      return state;
    }
    if (!this.#startingSince.has(tier.name)) this.#startingSince.set(tier.name, this.#clock());
    return state;
  }

  /** @param {Tier} tier @param {TierState} state */
  #progress(tier, state) {
    const since = this.#startingSince.get(tier.name);
    if ((state !== "loading" && state !== "provisioning") || since === undefined) return null;
    const waited = this.#clock() - since;
    const expected = tier.cold_start_s * 1000;
    // The page may have come later than the start: less may be left.
    const words = waited < expected ? `at most about ${duration(Math.ceil((expected - waited) / 1000) * 1000)} left` : `longer than usual (${duration(expected)})`;
    return element(
      "p",
      { class: "facts" },
      element("progress", { max: expected, value: Math.min(waited, expected), "aria-label": `${tier.name} ${state}` }),
      ` ${words}`,
    );
  }
}

/** @param {Tier} tier @param {TierState} state */
function facts(tier, state) {
  const { running, waiting } = tier.requests;
  const price = `${money(tier.price_usd_per_hour)}/h`;
  if (state === "cold") return [gpuWords(tier), price, `${duration(tier.cold_start_s * 1000)} to start`];
  if (state !== "warm" && state !== "busy") return [gpuWords(tier), price];
  const replicas = tier.replicas.running > 1 ? [`${figure(tier.replicas.running)} replicas`] : [];
  const load = running + waiting ? [`${running} running${waiting ? `, ${waiting} waiting` : ""}`] : [];
  return [gpuWords(tier), price, ...replicas, `wait ${duration(tier.queue_wait_ms)}`, ...load];
}
