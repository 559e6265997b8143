// Pictures of a timeline, as SVG.
import {svg, took} from './dom.js';

const WIDTH = 1000;
const ROW = 22;
const SHOWN_GENERATIONS = 16;
const CHARACTER = 6;  // its width, about

// Each generation a line: gathered, started, ran, stopped.
export function drawTimeline(parent, timeline, end) {
  const generations = timeline.generations.slice(-SHOWN_GENERATIONS);
  const from = generations.length ? Number(generations[0].gathering_us) : 0;
  const left = 90;
  const x = (us) => left + (WIDTH - left) * Math.max(0, us - from) / Math.max(1, end - from);
  const height = (generations.length + 1) * ROW;
  const picture = svg('svg', {viewBox: `0 0 ${WIDTH} ${height}`, role: 'img', 'aria-label': 'generations over time'});
  generations.forEach((one, index) => {
    const y = index * ROW;
    const at = (name) => Number(one[name]);
    const last = at('stopped_us') || (index + 1 < generations.length ? Number(generations[index + 1].gathering_us) : end);
    const ran = at('failed_us') || at('stopping_us') || last;
    picture.append(svg('text', {x: 0, y: y + 15}, `generation ${one.generation}`));
    const bar = (name, a, b) => {
      if (!a || b < a) return;
      picture.append(svg('rect', {class: name, x: x(a), y: y + 4, width: Math.max(1, x(b) - x(a)), height: ROW - 8},
          svg('title', {}, `${name}: ${took(b - a)}`)));
    };
    bar('gather', at('gathering_us') || 1, at('formed_us') || last);
    bar('start', at('formed_us'), at('running_us') || ran);
    bar('run', at('running_us'), ran);
    bar('stop', at('failed_us') || at('stopping_us'), last);
    if (one.end_reason) {
      // Beside the bar, on the side that has more room: never over it.
      const begin = x(at('gathering_us') || from);
      const behind = WIDTH - x(last) >= begin - left;
      const room = Math.floor((behind ? WIDTH - x(last) : begin - left) / CHARACTER) - 2;
      const words = one.end_reason.length <= room ? one.end_reason : `${one.end_reason.slice(0, Math.max(0, room - 1))}…`;
      if (room > 8) {
        picture.append(svg('text', {
          'class': 'cause', 'x': behind ? x(last) + 6 : begin - 6, 'y': y + 15, 'text-anchor': behind ? 'start' : 'end',
        }, words, svg('title', {}, one.end_reason)));
      }
    }
  });
  axis(picture, x, from, end, height - 5);
  parent.replaceChildren(picture);
}

function axis(picture, x, from, end, y) {
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const us = from + (end - from) * part;
    picture.append(svg('text', {'x': x(us), y, 'text-anchor': part === 0 ? 'start' : part === 1 ? 'end' : 'middle'},
        us > 0 ? took(us) : '0'));
  }
}
