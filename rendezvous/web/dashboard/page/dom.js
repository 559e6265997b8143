// Elements and words. Text comes from other machines: it is only ever set as text.

export const byId = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// What a terminal would show of it: without colours, titles and other commands, and of a line that was overwritten, as a
// progress bar is, the last state.
const COMMANDS = /\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]/g;
export const asShown = (text) => text.replace(COMMANDS, '').replace(/\r+\n/g, '\n').replace(/[^\n]*\r/g, '');

// Leaves the page alone where nothing has changed, so that selections and focus stay.
export function replace(parent, ...children) {
  const fresh = document.createElement('div');
  fresh.append(...children);
  if (fresh.innerHTML !== parent.innerHTML) parent.replaceChildren(...fresh.childNodes);
}

// The last cell is for sentences, and takes the room that is left.
export const row = (...cells) => element('tr', {}, ...cells.map(
    (cell, index) => element('td', index + 1 === cells.length ? {class: 'text'} : {}, cell)));

export const count = (number, noun) => `${number} ${noun}${number === 1 ? '' : 's'}`;

const PHASES = {CANCELLED_PHASE: 'cancelled', JOB_PHASE_UNSPECIFIED: 'starting'};
export const phaseName = (phase) => PHASES[phase] || phase.toLowerCase();

// Microseconds, as people say them.
export function took(us) {
  if (!(us > 0)) return '-';
  const seconds = us / 1e6;
  if (seconds < 10) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function amount(value) {
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(4)));
}

export function progressText(progress) {
  if (!progress) return '';
  const parts = [`step ${progress.step}`];
  if (Number(progress.max_step) > Number(progress.step) + 1) {
    parts[0] += ` (rank ${progress.slowest_rank}; others up to ${progress.max_step})`;
  }
  if (progress.samples_per_second > 0) parts.push(`${amount(progress.samples_per_second)} samples/s`);
  if (progress.loss !== 0) parts.push(`loss ${amount(Number(progress.loss))}`);
  return parts.join(' · ');
}
