// The cluster: jobs that wait for nodes, and the nodes.
import {byId, count, element, idOf, replace, row} from './dom.js';

// As the server goes through them: by priority, then by age.
export function showQueue(jobs) {
  const waiting = jobs.filter((job) => job.phase === 'QUEUED');
  waiting.sort((a, b) => b.priority - a.priority || Number(a.submission) - Number(b.submission));
  byId('queue-section').hidden = waiting.length === 0;
  replace(byId('queue'), ...waiting.map((job) => row(
      element('a', {href: `#${encodeURIComponent(idOf(job))}`}, job.name), String(job.priority), job.user, job.waiting_for)));
}

export function showNodes(nodes) {
  byId('cluster').hidden = nodes.length === 0;
  const sum = (list, field) => list.reduce((total, one) => total + one[field], 0);
  const lines = nodes.map((node) => {
    const labels = Object.entries(node.labels).map(([name, value]) => `${name}=${value}`).sort();
    const used = (what) => `${isUseKnown(node) ? sum(node.parts, what) : '?'}/${node[what]}`;
    const state = element('span', {}, element('span', {class: `phase ${stateOf(node)}`}, node.connected ? 'up' : 'away'));
    if (node.drained) {
      state.append(' ', element('span', {class: 'words'}, `drained${node.drain_reason && `: ${node.drain_reason}`}`));
    }
    if (node.leftovers) state.append(' ', element('span', {class: 'words'}, `ending ${count(node.leftovers, 'earlier launcher')}`));
    const jobs = element('span', {});
    node.parts.forEach((part, index) => {
      if (index) jobs.append(' ');
      jobs.append(element('a', {href: `#${encodeURIComponent(part.job)}`}, part.job));
    });
    return row(node.name, state, used('cpus'), used('gpus'), memoryOf(node), node.user || 'any', labels.join(', '), jobs);
  });
  replace(byId('nodes'), ...lines);
  const known = nodes.filter(isUseKnown);
  const parts = known.flatMap((node) => node.parts);
  const text = [count(nodes.length, 'node')];
  for (const [number, word] of [[nodes.filter((node) => !node.connected).length, 'away'], [nodes.filter((node) => node.drained).length, 'drained']]) {
    if (number) text.push(`${number} ${word}`);
  }
  for (const [field, word] of [['cpus', 'CPU'], ['gpus', 'GPU']]) {
    const all = sum(known, field);
    if (all) text.push(`${sum(parts, field)} of ${count(all, word)} in use`);
  }
  byId('cluster-line').textContent = text.join(' · ');
}

// Given to jobs, of all. JSON has these numbers as text, and 0 where the memory is not counted.
function memoryOf(node) {
  const gib = (bytes) => Number((bytes / 2 ** 30).toFixed(2));
  if (!Number(node.memory)) return '';
  const given = node.parts.reduce((total, part) => total + Number(part.memory), 0);
  return `${isUseKnown(node) ? gib(given) : '?'}/${gib(Number(node.memory))} GiB`;
}

// Where the agent is away, or ends what was given up, launchers may run of which the server counts nothing.
const isUseKnown = (node) => node.connected && !node.leftovers;
const stateOf = (node) => node.drained ? 'drained' : node.connected ? 'up' : 'away';
