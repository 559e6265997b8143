// Compares some runs, by step.
import {CURVES_MAX, Charts} from './charts.js';
import {byId, element, isLive, replace, shownName} from './dom.js';
import {get} from './events.js';
import {chartsByStep} from './history.js';

const EVERY_MS = 5000;

const chosen = new Map();  // the run's data by name; null: not loaded yet
const charts = new Charts(byId('compare-charts'), 'step');

export const compareBox = (name) => element('input', {
  'type': 'checkbox', 'data-compare': name, 'aria-label': `compare ${shownName(name)}`, ...(chosen.has(name) ? {checked: ''} : {}),
});

byId('jobs').addEventListener('change', (event) => {
  const name = event.target.dataset.compare;
  if (name === undefined) return;
  if (!event.target.checked) chosen.delete(name);
  else if (chosen.size < CURVES_MAX) chosen.set(name, null);
  else event.target.checked = false;
  // The attribute is set too, so that the list is equal when it is drawn again.
  event.target.toggleAttribute('checked', event.target.checked);
  load();
});

// Loads the chosen runs; those that go on are loaded again.
async function load() {
  show();
  if (chosen.size < 2) return;
  await Promise.all([...chosen].filter(([, job]) => job === null || isLive(job)).map(async ([name]) => {
    try {
      const response = await get(`api/jobs/${encodeURIComponent(name)}`);
      if (response.ok && chosen.has(name)) chosen.set(name, await response.json());
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
  replace(byId('compare-line'), [...chosen.keys()].map(shownName).join(' · '));
  if (wasHidden) box.scrollIntoView({behavior: 'smooth', block: 'nearest'});
}

setInterval(load, EVERY_MS);
