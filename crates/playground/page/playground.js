// The page of the playground. Texts of policies are text, never markup: elements are made, and strings are put into them.
// The limit of the script that tries this page is shorter.
const TIME_MS = Number(new URLSearchParams(location.search).get('time')) || 15000;
const TYPING_MS = 300;
const SHOWN_CHANGES = 50;

const at = (id) => document.getElementById(id);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/**
 * One question after the other; a question that takes too long ends the worker. Of the questions of one kind that wait, the
 * newest replaces the others, whose answer is null.
 */
class Program {
  #worker = null;
  #isBusy = false;
  #waiting = new Map();

  ask(question) {
    return new Promise((answer) => {
      this.#waiting.get(question.ask)?.answer(null);
      this.#waiting.set(question.ask, { question, answer });
      this.#next();
    });
  }

  async #next() {
    if (this.#isBusy) return;
    const [next] = this.#waiting;
    if (!next) return;
    const [kind, { question, answer }] = next;
    this.#waiting.delete(kind);
    this.#isBusy = true;
    answer(await this.#once(question));
    this.#isBusy = false;
    this.#next();
  }

  #once(question) {
    this.#worker ??= new Worker('worker.js', { type: 'module' });
    const worker = this.#worker;
    return new Promise((done) => {
      const end = (answer, isStuck) => {
        clearTimeout(timer);
        worker.onmessage = worker.onerror = null;
        if (isStuck) {
          worker.terminate();
          this.#worker = null;
        }
        done(answer);
      };
      const timer = setTimeout(() => end({ error: `no answer in ${TIME_MS / 1000} s: the policy is too large for a browser` }, true), TIME_MS);
      worker.onmessage = ({ data }) => end(data, false);
      worker.onerror = (event) => end({ error: event.message || 'the program cannot be loaded' }, true);
      worker.postMessage(question);
    });
  }
}

const program = new Program();
let old = null;

function device() {
  const own = at('model-text').value.trim();
  const workers = at('workers').value;
  return {
    policy: { text: at('policy').value },
    ...(own ? { model_text: own } : { model: at('model').value }),
    ...(workers ? { workers: Number(workers) } : {}),
  };
}

/** Puts the cursor of the policy into a line. */
function goTo(line) {
  const text = at('policy');
  const lines = text.value.split('\n');
  const start = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  text.focus();
  text.setSelectionRange(start, start + (lines[line - 1] ?? '').length);
  text.scrollTop = text.scrollHeight * Math.max(0, line - 5) / lines.length;
}

function place({ file, line }) {
  const button = element('button', { type: 'button', className: 'line', textContent: `${file}:${line}` });
  button.onclick = () => goTo(line);
  return button;
}

function problem(found) {
  const item = element('li', { className: found.severity }, place(found), ` ${found.severity}: ${found.message}`);
  if (found.hint) item.append(element('div', { className: 'dim', textContent: `help: ${found.hint}` }));
  return item;
}

function obstacle({ reason, limit, remedy }) {
  const item = element('li', { className: 'error', textContent: reason });
  if (limit) item.append(element('div', { className: 'dim', textContent: `limit: ${limit}` }));
  if (remedy) item.append(element('div', { className: 'dim', textContent: `remedy: ${remedy}` }));
  return item;
}

const counted = (count, one, many) => `${count} ${count === 1 ? one : many}`;

function verdict(answer) {
  if (!answer.ok) return answer.program ? `refused on ${answer.model}` : `not possible on ${answer.model}`;
  const { flows, priorities, queue_pairs: pairs } = answer.program;
  const size = [counted(flows, 'flow', 'flows'), counted(priorities, 'priority', 'priorities'), counted(pairs, 'queue pair', 'queue pairs')];
  return `ok on ${answer.model}: ${size.join(', ')}, ${counted(answer.workers, 'worker', 'workers')}`;
}

function rows(rules) {
  return rules.flatMap((rule) => {
    const cells = [rule.line || '', rule.name, rule.action, rule.flows, rule.decided.replaceAll('_', ' ')];
    const row = element('tr', {}, ...cells.map((cell, index) => element('td', { textContent: cell, className: index === 3 ? 'number' : '' })));
    const why = [rule.reason, rule.remedy && `remedy: ${rule.remedy}`, rule.note].filter(Boolean).join('; ');
    return why ? [row, element('tr', {}, element('td'), element('td', { colSpan: 4, className: 'dim', textContent: why }))] : [row];
  });
}

async function check() {
  const answer = await program.ask({ ask: 'check', ...device() });
  if (!answer) return;
  at('verdict').className = answer.ok ? 'good' : 'bad';
  at('rules').hidden = !answer.rules?.length;
  if (answer.error) {
    at('verdict').textContent = answer.error;
    at('problems').replaceChildren();
    return;
  }
  at('verdict').textContent = answer.diagnostics.length || answer.program ? verdict(answer) : 'not possible';
  const more = answer.omitted_diagnostics ? [element('li', { textContent: `and ${answer.omitted_diagnostics} more` })] : [];
  at('problems').replaceChildren(...answer.obstacles.map(obstacle), ...answer.diagnostics.map(problem), ...more);
  at('rules').tBodies[0].replaceChildren(...rows(answer.rules));
}

let isExplained = false;
async function explain() {
  isExplained = true;
  const answer = await program.ask({ ask: 'explain', ...device(), packet: at('packet').value });
  if (!answer) return;
  at('explained').textContent = answer.error ?? answer.text ?? answer.excerpts;
}

const side = ({ name, action }) => (name ? `${name}: ${action}` : action);

async function compare() {
  if (old === null) return;
  const answer = await program.ask({ ask: 'diff', old: { name: 'old policy', text: old }, new: { name: 'new policy', text: at('policy').value } });
  if (!answer) return;
  const into = at('changes');
  if (answer.error || answer.excerpts) {
    into.replaceChildren(element('pre', { textContent: answer.error ?? answer.excerpts, tabIndex: 0 }));
    return;
  }
  const words = { true: 'Both treat every packet alike.', false: 'Packets that are treated differently:', null: 'Not decided for all packets.' };
  const items = answer.pairs.slice(0, SHOWN_CHANGES).map((pair) => {
    const item = element('li', {}, element('strong', { textContent: `${side(pair.before)} → ${side(pair.after)}` }));
    item.append(element('div', { className: 'dim', textContent: `for example ${pair.witness.fields}` }));
    return item;
  });
  const left = answer.pairs.length - items.length;
  if (left > 0) items.push(element('li', { textContent: `and ${counted(left, 'more pair of rules', 'more pairs of rules')}` }));
  into.replaceChildren(element('p', { textContent: words[answer.equal] }), element('ul', {}, ...items));
}

let typing = 0;
function changed() {
  clearTimeout(typing);
  typing = setTimeout(() => {
    check();
    compare();
    if (isExplained) explain();
  }, TYPING_MS);
}

async function begin() {
  const examples = await (await fetch('examples.json')).json();
  at('example').append(...examples.map(({ name }) => element('option', { textContent: name })));
  at('example').onchange = () => {
    at('policy').value = examples[at('example').selectedIndex].text;
    changed();
  };
  at('policy').value = examples[0].text;
  const { models, error } = await program.ask({ ask: 'models' });
  if (error) {
    at('verdict').textContent = error;
    return;
  }
  at('model').append(...models.map((name) => element('option', { textContent: name, selected: name === 'mlx5' })));
  for (const id of ['policy', 'model', 'model-text', 'workers']) at(id).addEventListener('input', changed);
  at('explain').onsubmit = (event) => {
    event.preventDefault();
    explain();
  };
  at('keep').onclick = () => {
    old = at('policy').value;
    compare();
  };
  await check();
}

begin().catch((error) => {
  at('verdict').className = 'bad';
  at('verdict').textContent = `the page cannot be loaded: ${error.message}`;
});
