// Reads server-sent events with fetch, because EventSource cannot carry a token.

const RETRY_MS = [500, 1000, 2000, 5000];

let token = sessionStorage.getItem('cadre-token') || '';
export function setToken(text) {
  token = text;
  sessionStorage.setItem('cadre-token', text);
}

export function get(path, signal) {
  return fetch(path, {signal, headers: token ? {Authorization: `Bearer ${token}`} : {}});
}

// Calls `take(text)` with what a response brings, until it ends.
export async function readText(response, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    take(value);
  }
}

// Follows `path` until the returned function is called. `on` has a function for each event by name,
// and for what happens to the connection: connected(), lost(), denied().
export function follow(path, on) {
  const abort = new AbortController();
  let failures = 0;
  const once = async () => {
    const response = await get(path, abort.signal);
    if (response.status === 401) {
      on.denied();
      return false;
    }
    if (!response.ok) throw new Error(await response.text());
    failures = 0;
    on.connected();
    let rest = '';
    await readText(response, (text) => {
      const pieces = (rest + text).split('\n\n');
      rest = pieces.pop();
      for (const piece of pieces) dispatch(piece, on);
    });
    return true;
  };
  const loop = async () => {
    while (!abort.signal.aborted) {
      try {
        if (!await once()) return;
      } catch (error) {
        if (abort.signal.aborted) return;
      }
      on.lost();
      await new Promise((wake) => setTimeout(wake, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]));
    }
  };
  loop();
  return () => abort.abort();
}

function dispatch(piece, on) {
  const fields = {};
  for (const line of piece.split('\n')) {
    const colon = line.indexOf(': ');
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  if (fields.event === 'trouble') on.trouble(fields.data);
  else if (fields.event && on[fields.event]) on[fields.event](JSON.parse(fields.data));
}
