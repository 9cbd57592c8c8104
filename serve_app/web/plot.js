// The course of an answer: tokens per second, and below it accepted drafts and drafts per step (K).

import { element, setText } from "./dom.js";
import { figure, percent } from "./format.js";
import { course } from "./state.js";
import uPlot from "./vendor/uPlot.esm.js";

/** @import {Answer} from "./state.js" */

const HEIGHT = 96;
const REDRAW_MS = 200;
/** At most so many points, however long the answer. */
const POINTS = 240;

export class Plot {
  #where;
  /** @type {Chart[]} */
  #charts = [];
  #drawnMs = -Infinity;

  /** @param {HTMLElement} where */
  constructor(where) {
    this.#where = where;
    const redraw = () => this.#charts.forEach(({ plot }) => plot.redraw(false));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
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
    if (!this.#charts.length) this.#charts = [this.#chart(SPEED), this.#chart(DRAFTS)];
    const [speed, drafts] = this.#charts;
    speed.plot.setData([points.s, points.rate]);
    drafts.plot.setData([points.s, points.accepted, points.k]);
    drafts.chart.hidden = !points.k.some((k) => k > 0);
    if (answer.ended) this.#where.setAttribute("aria-label", summary(answer, points));
  }

  /** @param {Curves} curves @returns {Chart} */
  #chart({ scales, axes, lines }) {
    const keys = lines.map(({ key, second }) => element("span", { class: second ? "key second" : "key" }, key));
    const chart = element("figure", {}, element("figcaption", {}, ...keys));
    this.#where.append(chart);
    /** @type {uPlot.Options} */
    const options = {
      ...size(chart),
      scales: { x: { time: false }, ...scales },
      axes: [SECONDS, ...axes],
      series: [{}, ...lines.map(({ series }) => series)],
      padding: [8, 4, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "answer" } },
      legend: { show: false },
      hooks: {
        setCursor: [
          ({ cursor: { idx }, data }) =>
            lines.forEach(({ key, words }, index) => {
              const value = idx === null || idx === undefined ? null : data[index + 1][idx];
              setText(keys[index], value === null || value === undefined ? key : `${key} ${words(value)}`);
            }),
        ],
      },
    };
    const plot = new uPlot(options, [[], ...lines.map(() => [])], chart);
    new ResizeObserver(() => plot.setSize(size(chart))).observe(chart);
    return { chart, plot };
  }
}

/** @param {HTMLElement} chart */
function size(chart) {
  return { width: Math.max(160, chart.clientWidth), height: HEIGHT };
}

/** @typedef {{chart: HTMLElement, plot: uPlot}} Chart */

/**
 * What a chart shows. Each line has a key in words; the second one of a chart is dashed.
 *
 * @typedef {object} Curves
 * @property {uPlot.Scales} scales
 * @property {uPlot.Axis[]} axes
 * @property {{key: string, second?: boolean, words: (value: number) => string, series: uPlot.Series}[]} lines
 */

/** @param {string} name of a colour in style.css; read when it is drawn, so that a change of the scheme counts */
function colour(name) {
  return () => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
}

const FONT = "11px system-ui, sans-serif";
const AXIS = { font: FONT, stroke: colour("muted"), ticks: { show: false } };

/** @type {uPlot.Axis} */
const SECONDS = { ...AXIS, size: 26, gap: 7, space: 70, grid: { show: false }, values: (_, splits) => splits.map((s) => `${figure(s)} s`) };

/** @param {string} scale @param {(value: number) => string} words @param {"left" | "right"} side @returns {uPlot.Axis} */
function axis(scale, words, side) {
  const left = side === "left";
  return {
    ...AXIS,
    scale,
    side: left ? 3 : 1,
    size: 46,
    gap: 4,
    space: 24,
    grid: { stroke: colour("line"), width: 1, show: left },
    values: (_, splits) => splits.map((value) => (value === null ? "" : words(value))),
  };
}

/** A scale from 0 up to the largest value, and at least to 1. @param {(most: number) => number} top @returns {uPlot.Scale} */
function fromZero(top) {
  return { range: (_, __, most) => [0, Math.max(1, top(most ?? 0))] };
}

const LINE = { width: 2, points: { show: false } };

/** @type {Curves} */
const SPEED = {
  scales: { rate: fromZero((most) => most * 1.1) },
  axes: [axis("rate", figure, "left"), axis("rate", () => "", "right")],
  lines: [{ key: "tokens/s", words: figure, series: { ...LINE, scale: "rate", stroke: colour("accent") } }],
};

/** @type {Curves} */
const DRAFTS = {
  scales: { share: { range: [0, 1] }, k: fromZero(Math.ceil) },
  axes: [axis("share", percent, "left"), { ...axis("k", figure, "right"), incrs: [1, 2, 4, 8, 16] }],
  lines: [
    { key: "accepted", words: percent, series: { ...LINE, scale: "share", stroke: colour("accent"), spanGaps: true } },
    {
      key: "drafts a step (K)",
      second: true,
      words: figure,
      series: { ...LINE, scale: "k", stroke: colour("second"), dash: [5, 4], paths: uPlot.paths.stepped?.({ align: 1 }) },
    },
  ],
};

/** @param {Answer} answer @param {ReturnType<typeof course>} points */
function summary(answer, points) {
  const most = figure(Math.max(...points.rate));
  const least = figure(Math.min(...points.rate));
  // Of a step; the curve is a mean.
  const mostK = answer.steps.reduce((soFar, step) => Math.max(soFar, step.k), 0);
  const spec = answer.metrics?.spec;
  const accepted = spec?.acceptance_rate ?? null;
  const drafted = accepted === null ? "nothing was drafted" : `${percent(accepted)} of the drafts were accepted, K was up to ${figure(mostK)}`;
  return `Plot over the answer: ${least} to ${most} tokens per second; ${drafted}.`;
}
