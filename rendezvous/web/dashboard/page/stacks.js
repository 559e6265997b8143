// Where the ranks are, asked when somebody wants to know: it is not pushed.
import {byId, element, idOf} from './dom.js';
import {get} from './events.js';

let job = '';
let id = '';
let asked = 0;

// What was found stays until another job is shown.
export function showStacks(shown) {
  byId('ask-stacks').disabled = shown.phase !== 'RUNNING' && shown.phase !== 'STOPPING';
  if (shown.name === job) return;
  job = shown.name;
  id = idOf(shown);
  asked += 1;
  say('');
  byId('stacks').replaceChildren();
}

function say(text) {
  byId('stacks-line').textContent = text;
}

async function ask() {
  const number = asked += 1;
  say('The nodes are asked …');
  let text = 'The connection was lost.', reply = null;
  try {
    const response = await get(`api/jobs/${encodeURIComponent(id)}/stacks`);
    if (response.ok) reply = await response.json();
    else text = await response.text();
  } catch (error) {
    // As it says.
  }
  if (number !== asked) return;
  if (reply === null) return say(text);
  say(`Generation ${reply.generation} at ${new Date().toLocaleTimeString()}; the most recent call comes first.`);
  byId('stacks').replaceChildren(...reply.groups.map((group) => showGroup(group, reply.world_size)),
      ...reply.silent.map((node) => element('p', {}, `node ${node.node}, ${node.workers} ranks from ${node.first_rank}: ${node.why}`)),
      ...(reply.silent_left_out ? [`and ${reply.silent_left_out} more nodes`] : []));
}

function showGroup(group, all) {
  const {evidence, frames, cut, no_python: why} = group.first;
  const one = group.ranks.length === 1;
  const who = one ? `rank ${group.ranks[0]} on ${evidence.node}, pid ${evidence.pid}` :
      `ranks ${runs(group.ranks)} (${group.ranks.length} of ${all})`;
  const calls = element('pre', {});
  for (const frame of frames) {
    const line = `${frame.file}:${frame.line} in ${frame.function}\n${frame.source ? `    ${frame.source}\n` : ''}`;
    calls.append(frame.own ? element('span', {class: 'own'}, line) : line);
  }
  if (cut) calls.append('… and the calls further out\n');
  if (!frames.length) calls.append(`${why}\n${evidence.summary}`);
  return element('details', {open: '', class: 'stack'}, element('summary', {}, `${who}: ${place(evidence)}`), calls);
}

// As `cadre stacks` has it.
function place({python, python_what: what, python_where: where}) {
  const from = where ? `, from ${where}` : '';
  switch (python) {
    case 'IN_COLLECTIVE': return `in ${what}${from}`;
    case 'IN_DATA_LOADER': return `in the data loader${what ? `: ${what}` : ''}${from}`;
    case 'IMPORTING': return `importing modules${from}`;
    case 'IN_OWN_CODE': return `at ${where || what}`;
    default: return 'no Python stack';
  }
}

// "0-2,5".
function runs(ranks) {
  const words = [];
  for (let i = 0; i < ranks.length;) {
    let end = i + 1;
    while (end < ranks.length && ranks[end] === ranks[end - 1] + 1) end += 1;
    words.push(end - i === 1 ? `${ranks[i]}` : `${ranks[i]}-${ranks[end - 1]}`);
    i = end;
  }
  return words.join(',');
}

byId('ask-stacks').addEventListener('click', ask);
