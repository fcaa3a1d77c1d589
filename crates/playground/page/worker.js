// Runs the program once for each question: its standard input is the question, its standard output the answer.
import { ConsoleStdout, File, OpenFile, WASI } from './wasi/index.js';

const compiled = WebAssembly.compileStreaming(fetch('playground.wasm'));

async function answer(question) {
  const input = new OpenFile(new File(new TextEncoder().encode(JSON.stringify(question))));
  const output = new OpenFile(new File([]));
  const messages = ConsoleStdout.lineBuffered((line) => console.warn(line));
  const wasi = new WASI(['playground'], [], [input, output, messages]);
  const instance = await WebAssembly.instantiate(await compiled, { wasi_snapshot_preview1: wasi.wasiImport });
  wasi.start(instance);
  return JSON.parse(new TextDecoder().decode(output.file.data));
}

self.onmessage = async ({ data: question }) => {
  try {
    self.postMessage(await answer(question));
  } catch (error) {
    self.postMessage({ error: `the program has ended: ${error.message}` });
  }
};
