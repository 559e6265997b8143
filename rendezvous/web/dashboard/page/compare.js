// Compares some runs, by step.
import {CURVES_MAX, Charts} from './charts.js';
import {byId, element, idOf, isLive, replace, shownName} from './dom.js';
import {get} from './events.js';
import {chartsByStep} from './history.js';

const EVERY_MS = 5000;

const chosen = new Map();  // the run's data by its id (idOf); null: not loaded yet
const names = new Map();  // by id
const charts = new Charts(byId('compare-charts'), 'step');

export function compareBox(job) {
  const id = idOf(job);
  names.set(id, shownName(job.name));
  return element('input', {
    'type': 'checkbox', 'data-compare': id, 'aria-label': `compare ${names.get(id)}`, ...(chosen.has(id) ? {checked: ''} : {}),
  });
}

byId('jobs').addEventListener('change', (event) => {
  const id = event.target.dataset.compare;
  if (id === undefined) return;
  if (!event.target.checked) chosen.delete(id);
  else if (chosen.size < CURVES_MAX) chosen.set(id, null);
  else event.target.checked = false;
  // The attribute is set too, so that the list is equal when it is drawn again.
  event.target.toggleAttribute('checked', event.target.checked);
  load();
});

// Loads the chosen runs; those that go on are loaded again.
async function load() {
  show();
  if (chosen.size < 2) return;
  await Promise.all([...chosen].filter(([, job]) => job === null || isLive(job)).map(async ([id]) => {
    try {
      const response = await get(`api/jobs/${encodeURIComponent(id)}`);
      if (response.ok && chosen.has(id)) chosen.set(id, await response.json());
    } catch (error) {
      // An error is ignored, because it is loaded again.
    }
  }));
  show();
}

function show() {
  const box = byId('compare');
  const wasHidden = box.hidden;
  box.hidden = chosen.size < 2;
  if (box.hidden) return;
  const known = [...chosen.values()].filter((job) => job !== null);
  charts.show(() => chartsByStep(known.map((job) => ({name: shownName(job.name), timeline: job.timeline}))));
  replace(byId('compare-line'), [...chosen.keys()].map((id) => names.get(id)).join(' · '));
  if (wasHidden) box.scrollIntoView({behavior: 'smooth', block: 'nearest'});
}

setInterval(load, EVERY_MS);
