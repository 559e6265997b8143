// One job: its nodes and ranks, generations, verdict.
import {Charts} from './charts.js';
import {asShown, byId, element, idOf, isLive, phaseName, phaseOf, progressText, replace, row, shownName, took} from './dom.js';
import {get} from './events.js';
import {chartsOverTime} from './history.js';
import {drawTimeline} from './pictures.js';
import {chosenRank, showLogs, showOutputOf} from './logs.js';
import {showStacks} from './stacks.js';

// When the server's clock was last heard of, to let the last bar grow in between.
let heard = {job: '', us: 0, at: 0};
let shown = null;
const charts = new Charts(byId('charts'), 'time');
// How busy the nodes are is polled, because it is not pushed.
const USAGE_EVERY_MS = 10000;
let usage = {job: '', nodes: []};

export function showJob(job) {
  shown = job;
  const phase = phaseOf(job);
  byId('job-name').textContent = shownName(job.name);
  if (usage.job !== job.name) loadUsage();
  byId('job-phase').textContent = phase;
  byId('job-phase').className = `phase ${phase}`;
  const parts = [job.user && `submitted by ${job.user}`];
  if (phase !== 'queued') {
    parts.push(`generation ${job.generation}`, `${job.workers_running} of ${job.world_size} workers run`,
        `${job.restarts} of ${job.max_restarts} restarts used`, progressText(job.progress));
  }
  if (job.stop_reason) parts.push(`stopping: ${job.stop_reason}`);
  if (job.waiting_for) parts.push(`waits for ${job.waiting_for}`);
  if (job.stall) parts.push(`stands still: ${job.stall}`);
  byId('job-line').textContent = parts.filter(Boolean).join(' · ');
  showVerdict(job);
  showGrid(job);
  showStacks(job);
  showGenerations(job.timeline);
  draw();
  showLogs(job);
}

function showVerdict(job) {
  const box = byId('verdict');
  box.hidden = !job.verdict;
  if (!job.verdict) return;
  const {message, outcome, root_cause: cause} = job.verdict;
  box.className = phaseName(outcome);
  const lines = [element('strong', {}, `${phaseName(outcome)}${message && `: ${message}`}`)];
  for (const evidence of cause?.evidence || []) {
    // The evidence that says in what the nodes differ has no rank.
    const whose = evidence.rank < 0 ? '' : `rank ${evidence.rank} on ${evidence.node}: `;
    lines.push(element('div', {}, `${whose}${evidence.summary}`));
  }
  if (cause?.exit?.last_lines) lines.push(element('pre', {}, asShown(cause.exit.last_lines)));
  if (cause && cause.rank >= 0) {
    lines.push(element('button', {'type': 'button', 'data-rank': cause.rank, 'data-generation': cause.generation},
        `Output of rank ${cause.rank}`));
  }
  replace(box, ...lines);
}

// The output of whoever failed is one click away.
byId('verdict').addEventListener('click', (event) => {
  const {rank, generation} = event.target.dataset;
  if (rank !== undefined) showOutputOf(Number(generation), Number(rank));
});

const STATES = {WORKER_RUNNING: 'running', WORKER_SUCCEEDED: 'succeeded', WORKER_FAILED: 'failed'};

function showGrid(job) {
  const nodes = [...job.nodes].sort((a, b) => (a.node_rank - b.node_rank) * (a.node_rank < 0 || b.node_rank < 0 ? -1 : 1));
  replace(byId('grid'), ...nodes.map((node) => {
    const spare = node.node_rank < 0;
    const line = element('div', {class: 'node'},
        element('span', {title: node.host}, spare ? `${node.name} (${node.remains ? `out: ${node.remains}` : 'not in a generation'})` : `${node.node_rank}: ${node.name}`));
    node.workers.forEach((state, local) => {
      const rank = node.first_rank + local;
      const word = STATES[state] || 'starting';
      line.append(element('button', {
        'class': `rank ${word}${rank === chosenRank() ? ' chosen' : ''}`, 'data-rank': rank,
        'title': `rank ${rank}, local rank ${local} on ${node.name}: ${word}`,
      }, String(rank)));
    });
    return line;
  }));
}

function showGenerations(timeline) {
  const recovered = new Map(timeline.recoveries.map((one) => [one.from_generation, one.total_us]));
  const between = (from, to) => took(Number(to) ? Number(to) - Number(from) : 0);
  replace(byId('generations'), ...[...timeline.generations].reverse().map((one) => row(
      one.generation, String(one.nodes), String(one.world_size), between(one.gathering_us, one.formed_us),
      between(one.formed_us, one.running_us),
      Number(one.running_us) ? between(one.running_us, Number(one.failed_us) || Number(one.stopping_us) || now()) : '-',
      Number(one.stopping_us) ? between(one.stopping_us, one.stopped_us) : '-', took(Number(recovered.get(one.generation) || 0)), one.end_reason)));
}

// Microseconds since the job was created.
function now() {
  const times = shown.timeline.progress.map((sample) => Number(sample.at_us));
  for (const one of shown.timeline.generations) {
    times.push(...['gathering_us', 'formed_us', 'running_us', 'failed_us', 'stopping_us', 'stopped_us'].map((name) => Number(one[name])));
  }
  const us = Math.max(0, ...times);
  if (heard.job !== shown.name || us !== heard.us) heard = {job: shown.name, us, at: performance.now()};
  return !isLive(shown) ? us : us + (performance.now() - heard.at) * 1000;
}

function draw() {
  const end = now();
  drawTimeline(byId('timeline'), shown.timeline, end);
  const {verdict} = shown;
  charts.show(() => chartsOverTime(shown.timeline, usage, verdict && `${phaseName(verdict.outcome)}${verdict.message && `: ${verdict.message}`}`, end));
}

async function loadUsage() {
  const {name} = shown;
  if (usage.job !== name) usage = {job: name, nodes: []};
  try {
    const response = await get(`api/jobs/${encodeURIComponent(idOf(shown))}/usage`);
    const found = response.ok ? await response.json() : {nodes: []};
    if (shown.name !== name) return;
    usage = {job: name, nodes: found.nodes};
    draw();
  } catch (error) {
    // An error is ignored, because it is loaded again.
  }
}

setInterval(() => {
  if (shown && isLive(shown) && !byId('job').hidden) loadUsage();
}, USAGE_EVERY_MS);

// Time passes where nothing else happens, too.
setInterval(() => {
  if (shown && isLive(shown) && !byId('job').hidden) draw();
}, 1000);
