// The course of an answer: tokens per second, and below it accepted drafts and drafts per step (K).

import { percent, figure } from "./format.js";
import { course } from "./state.js";
import uPlot from "./vendor/uPlot.esm.js";

/** @import {Answer} from "./state.js" */

const HEIGHT = 96;
const REDRAW_MS = 200;
/** At most so many points, however long the answer. */
const POINTS = 240;

export class Plot {
  #where;
  /** @type {uPlot[]} */
  #plots = [];
  #drawnMs = -Infinity;

  /** @param {HTMLElement} where */
  constructor(where) {
    this.#where = where;
    const redraw = () => this.#plots.forEach((plot) => plot.redraw(false));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    new ResizeObserver(() => this.#plots.forEach((plot) => plot.setSize(this.#size()))).observe(where);
  }

  /**
   * @param {Answer} answer
   * @param {number} nowMs
   */
  draw(answer, nowMs) {
    if (!answer.ended && nowMs - this.#drawnMs < REDRAW_MS && nowMs >= this.#drawnMs) return;
    this.#drawnMs = nowMs;
    const { steps } = answer;
    const lasted = steps.length ? steps[steps.length - 1].atMs - steps[0].atMs : 0;
    const points = course(steps, Math.max(100, lasted / POINTS));
    this.#where.hidden = points.s.length < 2;
    if (this.#where.hidden) return;
    if (!this.#plots.length) this.#plots = [this.#make(speed), this.#make(drafts)];
    this.#plots[0].setData([points.s, points.rate]);
    this.#plots[1].setData([points.s, points.accepted, points.k]);
    if (answer.ended) this.#where.setAttribute("aria-label", summary(answer, points));
  }

  #size() {
    return { width: Math.max(160, this.#where.clientWidth), height: HEIGHT };
  }

  /** @param {() => Pick<uPlot.Options, "series" | "axes" | "scales">} options */
  #make(options) {
    /** @type {uPlot.Options} */
    const common = {
      ...this.#size(),
      ...options(),
      padding: [8, 4, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "answer" } },
      legend: { live: true },
    };
    return new uPlot(common, [[], []], this.#where);
  }
}

/** @param {string} name of a colour in style.css; read when it is drawn, so that a change of the scheme counts */
function colour(name) {
  return () => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
}

const FONT = "11px system-ui, sans-serif";

/** @param {string} scale @param {(value: number) => string} words @param {number} side @returns {uPlot.Axis} */
function axis(scale, words, side) {
  return {
    scale,
    side,
    size: 44,
    gap: 4,
    font: FONT,
    stroke: colour("muted"),
    grid: { stroke: colour("line"), width: 1, show: side === 3 },
    ticks: { show: false },
    values: (_, splits) => splits.map((value) => (value === null ? "" : words(value))),
  };
}

/** @returns {uPlot.Axis} */
function seconds() {
  return {
    size: 22,
    gap: 2,
    font: FONT,
    stroke: colour("muted"),
    grid: { show: false },
    ticks: { show: false },
    values: (_, splits) => splits.map((value) => `${figure(value)} s`),
  };
}

const SECONDS = { label: "after", value: (/** @type {uPlot} */ _, /** @type {number | null} */ s) => (s === null ? "–" : `${s.toFixed(1)} s`) };

function speed() {
  return {
    scales: { x: { time: false }, rate: { range: /** @type {uPlot.Range.Function} */ ((_, __, most) => [0, Math.max(1, most * 1.1)]) } },
    axes: [seconds(), axis("rate", figure, 3), { ...axis("rate", () => "", 1), grid: { show: false } }],
    series: [
      SECONDS,
      { label: "tokens/s", scale: "rate", stroke: colour("accent"), width: 2, points: { show: false }, value: said(figure) },
    ],
  };
}

function drafts() {
  return {
    scales: {
      x: { time: false },
      share: { range: /** @type {[number, number]} */ ([0, 1]) },
      k: { range: /** @type {uPlot.Range.Function} */ ((_, __, most) => [0, Math.max(1, Math.ceil(most))]) },
    },
    axes: [seconds(), axis("share", percent, 3), axis("k", figure, 1)],
    series: [
      SECONDS,
      { label: "accepted", scale: "share", stroke: colour("accent"), width: 2, points: { show: false }, value: said(percent) },
      {
        label: "K, drafts a step",
        scale: "k",
        stroke: colour("second"),
        width: 2,
        dash: [5, 4],
        points: { show: false },
        paths: uPlot.paths.stepped?.({ align: 1 }),
        value: said(figure),
      },
    ],
  };
}

/** @param {(value: number) => string} words */
function said(words) {
  return (/** @type {uPlot} */ _, /** @type {number | null} */ value) => (value === null ? "–" : words(value));
}

/** @param {Answer} answer @param {ReturnType<typeof course>} points */
function summary(answer, points) {
  const most = figure(Math.max(...points.rate));
  const least = figure(Math.min(...points.rate));
  const spec = answer.metrics?.spec;
  const accepted = spec?.acceptance_rate ?? null;
  const drafted = accepted === null ? "nothing was drafted" : `${percent(accepted)} of the drafts were accepted, K was up to ${figure(Math.max(...points.k))}`;
  return `Plot over the answer: ${least} to ${most} tokens per second; ${drafted}.`;
}
