// One worker's output, followed.
import {asShown, byId, element, idOf, replace} from './dom.js';
import {get, readText} from './events.js';

const KEPT_CHARACTERS = 200000;

// What is followed, and what could be: ranks by generation, as the server finds them.
let choice = {job: '', id: '', generation: 0, rank: 0, stream: 'stdout'};
let found = new Map();
let newest = true;
let submitted = false;
let abort = new AbortController();
let seen = '';

export const chosenRank = () => choice.rank;

export async function showLogs(job) {
  if (job.name !== choice.job) {
    choice = {job: job.name, id: idOf(job), generation: 0, rank: 0, stream: 'stdout'};
    newest = true;
    seen = '';
    follow();
  }
  submitted = job.user !== '';
  // Directories come when workers start.
  const now = `${job.name} ${job.generation} ${job.workers_running} ${job.workers_succeeded}`;
  if (now === seen) return;
  seen = now;
  const response = await get(`api/jobs/${encodeURIComponent(choice.id)}/logs`);
  if (!response.ok) return;
  const list = await response.json();
  if (job.name !== choice.job) return;
  found = new Map(list.generations.map((one) => [one.generation, one.ranks]));
  const last = Math.max(0, ...found.keys());
  if (newest && last !== choice.generation) {
    choice.generation = last;
    if (last && !found.get(last).includes(choice.rank)) choice.rank = found.get(last)[0] || 0;
    follow();
  }
  showChoice();
}

function showChoice() {
  if (!found.size) {
    replace(byId('log-choice'), element('span', {class: 'quiet'}, submitted ? 'No worker has started yet.' :
        'The output of this job’s workers lies on their nodes, under their log directory; this server cannot read it.'));
    return;
  }
  const select = (name, values, label) => {
    const box = element('select', {'data-name': name, 'aria-label': name});
    for (const value of values) {
      const option = element('option', {value}, label(value));
      if (String(value) === String(choice[name])) option.setAttribute('selected', '');
      box.append(option);
    }
    return box;
  };
  const ranks = found.get(choice.generation) || [];
  replace(byId('log-choice'),
      select('generation', [...found.keys()], (value) => `generation ${value}`),
      select('rank', ranks, (value) => `rank ${value}`),
      select('stream', ['stdout', 'stderr'], (value) => value),
      element('span', {class: 'quiet'}, ranks.includes(choice.rank) ? '' :
          `rank ${choice.rank} wrote its output on another machine`));
}

async function follow() {
  abort.abort();
  abort = new AbortController();
  const signal = abort.signal;
  const log = byId('log');
  log.textContent = '';
  if (!(found.get(choice.generation) || []).includes(choice.rank)) return;
  let before = '';
  let raw = '';
  const query = `generation=${choice.generation}&rank=${choice.rank}&stream=${choice.stream}`;
  try {
    const response = await get(`api/jobs/${encodeURIComponent(choice.id)}/log?${query}`, signal);
    if (!response.ok) {
      log.textContent = await response.text();
      return;
    }
    await readText(response, (text) => {
      if (signal.aborted) return;
      // The last line may go on, or be overwritten, and a command may be cut in two.
      raw += text;
      const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
      const whole = raw.lastIndexOf('\n') + 1;
      before += asShown(raw.slice(0, whole));
      raw = raw.slice(whole).slice(-KEPT_CHARACTERS);
      if (before.length > 2 * KEPT_CHARACTERS) before = before.slice(-KEPT_CHARACTERS);
      log.textContent = before + asShown(raw.replace(/\r+$/, ''));
      if (atEnd) log.scrollTop = log.scrollHeight;
    });
  } catch (error) {
    if (!signal.aborted) log.append('\n(the connection was lost)');
  }
}

export function showOutputOf(generation, rank) {
  if (found.has(generation)) choice.generation = generation;
  newest = choice.generation === Math.max(...found.keys());
  choice.stream = 'stderr';
  choose('rank', rank);
  byId('log-choice').scrollIntoView({behavior: 'smooth'});
}

function choose(name, value) {
  choice[name] = name === 'stream' ? value : Number(value);
  if (name === 'generation') newest = choice.generation === Math.max(...found.keys());
  showChoice();
  follow();
}

byId('log-choice').addEventListener('change', (event) => choose(event.target.dataset.name, event.target.value));
byId('grid').addEventListener('click', (event) => {
  if (event.target.dataset.rank === undefined) return;
  choose('rank', event.target.dataset.rank);
});
