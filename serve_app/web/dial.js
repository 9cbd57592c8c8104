// The power dial over the four tiers, AUTO, and the speed dial.

import { byId, setText } from "./dom.js";

/** @import {Config, Tier} from "./types.js" */

export class Dial {
  #auto = byId("auto", HTMLInputElement);
  #manual = byId("manual", HTMLInputElement);
  #power = byId("power", HTMLInputElement);
  #speed = byId("speed", HTMLInputElement);
  #value = byId("power-value", HTMLElement);
  #note = byId("power-note", HTMLElement);
  #speedValue = byId("speed-value", HTMLElement);
  /** @type {readonly Tier[]} */
  #tiers = [];
  /** @type {Config | null} the last answer in AUTO mode */
  #chosen = null;
  #changed;

  /** @param {() => void} changed called when the user moves a dial */
  constructor(changed) {
    this.#changed = changed;
    this.#power.addEventListener("input", () => {
      this.#manual.checked = true; // who moves the dial sets it
      this.draw();
      changed();
    });
    for (const mode of [this.#auto, this.#manual]) {
      mode.addEventListener("change", () => {
        this.draw();
        changed();
      });
    }
    this.#speed.addEventListener("input", () => this.draw());
    this.draw();
  }

  get mode() {
    return this.#auto.checked ? /** @type {const} */ ("auto") : /** @type {const} */ ("manual");
  }

  get power() {
    return this.#power.valueAsNumber;
  }

  get speed() {
    return this.#speed.valueAsNumber;
  }

  /** The tier that the dial points at; null in AUTO mode before an answer. */
  get tier() {
    if (this.mode === "auto") return this.#chosen?.tier ?? null;
    return this.#tiers.find(({ power }) => this.power >= power[0] && this.power <= power[1])?.name ?? null;
  }

  /** @param {readonly Tier[]} tiers */
  setTiers(tiers) {
    this.#tiers = tiers;
    this.draw();
  }

  /** Shows where AUTO has set the power. @param {Config} config of an answer */
  show(config) {
    if (config.mode !== "auto" || this.mode !== "auto") return;
    this.#chosen = config;
    this.#power.value = String(config.power);
    this.draw();
    this.#changed();
  }

  /** Sets the dials as they were for a request. @param {{mode: "auto" | "manual", power?: number, speed: number}} request */
  set({ mode, power, speed }) {
    (mode === "auto" ? this.#auto : this.#manual).checked = true;
    if (power !== undefined) this.#power.value = String(power);
    this.#speed.value = String(speed);
    this.draw();
    this.#changed();
  }

  draw() {
    const auto = this.mode === "auto";
    this.#power.classList.toggle("auto", auto && !this.#chosen);
    const tier = this.tier;
    setText(this.#value, auto && !this.#chosen ? "AUTO" : String(this.power));
    if (!auto) setText(this.#note, tier ? `picks ${tier}` : "");
    else setText(this.#note, this.#chosen ? `AUTO chose ${tier}` : "the prompt's difficulty sets it; move it to set it yourself");
    this.#power.setAttribute("aria-valuetext", auto && !this.#chosen ? "AUTO" : `${this.power}${tier ? `, ${tier}` : ""}`);
    setText(this.#speedValue, String(this.speed));
  }
}
