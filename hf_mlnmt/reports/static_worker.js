// The translator of a static Space: transformers.js in a worker, so that the page stays quick. Written by hf-mlnmt.
import { env, pipeline } from "./runtime/transformers.js";

env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "./"; // of an absolute address it finds no tokenizer
env.useBrowserCache = false; // the service worker keeps everything

const LONGEST = /*LONGEST*/ 128; // tokens: longer texts than it was trained on are cut

async function start() {
  const packed = await fetch(new URL("./runtime/ort.wasm.gz", import.meta.url));
  if (!packed.ok) throw new Error(`runtime/ort.wasm.gz: ${packed.status}`);
  const unpacked = packed.body.pipeThrough(new DecompressionStream("gzip"));
  env.backends.onnx.wasm.wasmBinary = await new Response(unpacked).arrayBuffer();
  env.backends.onnx.wasm.wasmPaths = undefined; // else it asks another machine for them
  env.backends.onnx.wasm.numThreads = 1;
  return pipeline("translation", "model", { dtype: "q8", device: "wasm" });
}

const starting = start();
starting.then(
  () => postMessage({ ready: true }),
  (error) => postMessage({ error: `The model could not be started: ${error.message}` }),
);

let newest = 0;
addEventListener("message", ({ data }) => {
  newest = data.number;
  translate(data).catch((error) => postMessage({ error: `The text could not be translated: ${error.message}` }));
});

function* sentences(text, language) {
  // A line break is kept, and so is what stands between two sentences.
  const cut = new Intl.Segmenter(language || undefined, { granularity: "sentence" });
  for (const part of text.split(/(\s*\n\s*)/)) {
    if (!part.trim()) yield ["", part];
    else for (const { segment } of cut.segment(part)) yield [segment.trim(), segment.match(/\s*$/)[0]];
  }
}

function* pieces(translator, sentence) {
  // Of a sentence that is longer than the model knows: halves at a space, until they are not.
  const words = sentence.split(" ");
  if (words.length < 2 || translator.tokenizer(sentence).input_ids.dims.at(-1) <= LONGEST) yield sentence;
  else {
    const half = Math.ceil(words.length / 2);
    yield* pieces(translator, words.slice(0, half).join(" "));
    yield* pieces(translator, words.slice(half).join(" "));
  }
}

async function translate({ number, text, token, language }) {
  const translator = await starting;
  let done = "";
  for (const [sentence, after] of sentences(text, language)) {
    const found = [];
    for (const piece of sentence ? pieces(translator, sentence) : []) {
      if (number !== newest) return; // another text has been typed
      found.push((await translator(token ? `${token} ${piece}` : piece))[0].translation_text);
      await new Promise((resolve) => setTimeout(resolve)); // lets messages in
    }
    done += found.join(" ") + after;
    if (sentence) postMessage({ number, text: done, done: false });
  }
  postMessage({ number, text: done, done: true });
}
