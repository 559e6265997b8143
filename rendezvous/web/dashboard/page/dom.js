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

// The name of a past run has its job and when it began, in UTC: train@20261122T011933.123456Z.
export function shownName(name) {
  const parts = /^(.*)@(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)/.exec(name);
  if (!parts) return name;
  const [job, ...at] = parts.slice(1);
  const began = new Date(Date.UTC(at[0], at[1] - 1, ...at.slice(2)));
  const two = (number) => String(number).padStart(2, '0');
  return `${job}, ${began.getFullYear()}-${two(began.getMonth() + 1)}-${two(began.getDate())} ` +
      [began.getHours(), began.getMinutes(), began.getSeconds()].map(two).join(':');
}

const PHASES = {CANCELLED_PHASE: 'cancelled', JOB_PHASE_UNSPECIFIED: 'starting'};
export const phaseName = (phase) => PHASES[phase] || phase.toLowerCase();

// By what the server finds a job for as long as it knows it: another job may get the name.
export const idOf = (job) => (Number(job.submission) ? String(job.submission) : job.name);

// If a past run has no verdict, how it ended is unknown.
const isPast = (job) => shownName(job.name) !== job.name;
export const phaseOf = (job) => (isPast(job) && !job.verdict ? 'unknown' : phaseName(job.phase));
export const isLive = (job) => !job.verdict && !isPast(job);

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
  const total = Number(progress.total);
  const parts = [`step ${progress.step}${total ? ` of ${total}` : ''}`];
  if (Number(progress.max_step) > Number(progress.step) + 1) {
    parts[0] += ` (rank ${progress.slowest_rank}; others up to ${progress.max_step})`;
  }
  // As in rpc/job_progress.cc: what the rate was with the last step is not what it is.
  const quiet = Number(progress.quiet_us);
  const standsStill = quiet >= Math.max(5e6, 3 * Number(progress.usual_us));
  if (standsStill) parts.push(`no step for ${took(quiet)}`);
  else if (progress.samples_per_second > 0) parts.push(`${amount(progress.samples_per_second)} samples/s`);
  if (progress.loss !== 0) parts.push(`loss ${amount(Number(progress.loss))}`);
  for (const {name, value} of progress.figures || []) parts.push(`${name} ${amount(Number(value))}`);
  if (!standsStill && Number(progress.left_us)) parts.push(`about ${took(Number(progress.left_us))} left`);
  return parts.join(' · ');
}
