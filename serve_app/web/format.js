// Figures as text. A value that is not known is a dash.

export const UNKNOWN = "–";
const MINUS = "−";

/**
 * A figure with three significant digits and no exponent.
 *
 * @param {number} value
 */
export function figure(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const digits = Math.max(0, Math.min(12, 2 - Math.floor(Math.log10(size))));
  return sign(value) + size.toLocaleString("en", { maximumFractionDigits: digits });
}

/** @param {number} value */
function sign(value) {
  return value < 0 ? MINUS : "";
}

/**
 * A duration: `142 ms`, `4.9 s`, `40 s`, `1 min 12 s`, `2 h 5 min`.
 *
 * @param {number | null | undefined} ms
 */
export function duration(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  if (ms > 0 && ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 99.5) return `${Math.round(s)} s`;
  if (s < 3599.5) return `${Math.floor(Math.round(s) / 60)} min ${Math.round(s) % 60} s`;
  const min = Math.round(s / 60);
  return `${Math.floor(min / 60)} h ${min % 60} min`;
}

/**
 * Money: two decimals from a cent on, and as many as it takes far under one.
 *
 * @param {number | null | undefined} usd
 */
export function money(usd) {
  if (usd === null || usd === undefined) return UNKNOWN;
  const size = Math.abs(usd);
  const words = size >= 0.01 ? size.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : figure(size);
  return `${sign(usd)}$${words}`;
}

/**
 * An amount in a unit, or in a thousandth of it where the figure would begin with zeros.
 *
 * @param {number | null | undefined} value
 * @param {"Wh" | "L" | "g"} unit
 */
export function amount(value, unit) {
  if (value === null || value === undefined) return UNKNOWN;
  const small = Math.abs(value) < 0.1 && value !== 0;
  return small ? `${figure(value * 1000)} m${unit}` : `${figure(value)} ${unit}`;
}

/**
 * @param {number | null | undefined} share 0-1
 */
export function percent(share) {
  if (share === null || share === undefined) return UNKNOWN;
  return `${sign(share)}${Math.round(Math.abs(share) * 100)} %`;
}

/**
 * @param {number} count
 * @param {string} one
 * @param {string} [many]
 */
export function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}
