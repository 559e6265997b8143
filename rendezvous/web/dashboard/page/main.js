// The list of jobs, and which of them is shown.
import {showNodes, showQueue} from './cluster.js';
import {compareBox} from './compare.js';
import {byId, count, element, idOf, isLive, phaseOf, progressText, replace, row, shownName} from './dom.js';
import {follow, setToken} from './events.js';
import {showJob} from './job.js';

let stop = () => {};
let jobs = [];

// The address that `cadre dashboard` prints has the token. It is removed from the address, so that a bookmark does not
// keep it.
const brought = /^#token=([0-9a-f]+)$/.exec(location.hash);
if (brought) {
  setToken(brought[1]);
  history.replaceState(null, '', location.pathname);
}

const chosen = () => decodeURIComponent(location.hash.slice(1));

function connection(text, lost) {
  byId('connection').textContent = text;
  byId('connection').className = lost ? 'lost' : '';
}

function start() {
  stop();
  byId('token').hidden = true;
  const job = chosen();
  byId('job').hidden = true;
  stop = follow(job ? `api/events?job=${encodeURIComponent(job)}` : 'api/events', {
    connected: () => connection('live', false),
    lost: () => connection('connection lost; trying again', true),
    denied: () => {
      connection('', false);
      byId('token').hidden = false;
    },
    trouble: (text) => connection(text, true),
    jobs: (list) => {
      jobs = list.jobs;
      showJobs();
      showQueue(jobs);
      // Where there is one job there is nothing to choose.
      if (!chosen() && jobs.length === 1) location.hash = idOf(jobs[0]);
    },
    nodes: (list) => showNodes(list.nodes),
    job: (status) => {
      byId('job').hidden = status === null;
      if (status !== null) showJob(status);
    },
  });
}

function showJobs() {
  const live = jobs.filter(isLive);
  const sum = (field) => live.reduce((total, job) => total + job[field], 0);
  const waiting = live.filter((job) => job.phase === 'QUEUED' || job.phase === 'GATHERING').length;
  byId('totals').textContent = `${count(live.length, 'live job')}${waiting ? `, ${waiting} waiting` : ''} · ` +
      `${count(sum('nodes_in'), 'node')} · ${count(sum('workers_running'), 'running worker')}`;
  byId('no-jobs').hidden = jobs.length > 0;
  replace(byId('jobs'), ...jobs.map((job) => {
    const phase = phaseOf(job);
    const line = row(
        compareBox(job), element('a', {href: `#${encodeURIComponent(idOf(job))}`}, shownName(job.name)),
        element('span', {class: `phase ${phase}`}, phase), job.generation, String(job.nodes_in),
        `${job.workers_running}/${job.world_size}`, `${job.restarts}/${job.max_restarts}`,
        element('span', {class: 'words'}, progressText(job.progress)),
        job.verdict ? job.verdict.message : job.stop_reason || job.stall || job.waiting_for);
    if (chosen() === idOf(job) || chosen() === job.name) line.className = 'chosen';
    return line;
  }));
}

byId('token').addEventListener('submit', (event) => {
  event.preventDefault();
  setToken(byId('token-text').value.trim());
  start();
});
window.addEventListener('hashchange', start);
start();
