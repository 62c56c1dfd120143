// Loads the model, compares it with its golden outputs in this browser, and predicts for the image that is dropped.
import { bars, element, find, onImage, showError, showImage, showResult } from "./drawing.js";
import { goldenDifferences, numbers } from "./golden.js";
import { imageInput, readPixels } from "./image_input.js";
import { predict } from "./prediction.js";

const get = async (path, read) => {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: status ${response.status}`);
  return response[read]();
};
let ort, session, contract, page;
let shown = 0;

async function load() {
  [contract, page] = await Promise.all([get("contract.json", "json"), get("page.json", "json")]);
  document.title = find("name").textContent = contract.name;
  const shapes = contract.signature.inputs.map((input) => `${input.name} ${input.dtype} [${input.shape.join(", ")}]`);
  find("facts").textContent = `${contract.signature.task}, version ${page.digest.slice(0, 12)}, ${shapes.join("; ")}`;
  ort = await import("./ort/ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = new URL("ort/", location.href).href;
  ort.env.logLevel = "error";
  const options = { executionProviders: ["wasm"], graphOptimizationLevel: "all" };
  options.externalData = page.external_data.map((path) => ({ path, data: path }));
  session = await ort.InferenceSession.create("model.onnx", options);
}

async function check() {
  const found = await goldenDifferences(ort, session, page, await get("golden.bin", "arrayBuffer"));
  const limit = contract.golden_tolerance;
  const off = found.outputs.filter((output) => !(output.error <= limit)); // NaN is off, too
  const runtime = `ONNX Runtime Web ${ort.env.versions.web}, ${found.milliseconds.toFixed(1)} ms a call`;
  if (off.length) {
    const [worst] = off;
    throw new Error(`'${worst.name}' differs by ${worst.error.toPrecision(3)}, allowed ${limit} (${runtime})`);
  }
  const worst = Math.max(...found.outputs.map((output) => output.error));
  showParity("pass", `They match: largest difference ${worst.toPrecision(3)}, allowed ${limit}, ${found.samples} samples; ${runtime}.`);
}

function showParity(outcome, text) {
  find("parity").className = outcome === "pass" ? "" : "error";
  find("parity").dataset.outcome = outcome;
  find("parity").textContent = text;
}

async function show(file) {
  const turn = ++shown;
  showImage(file);
  try {
    const pixels = await readPixels(file);
    const [spec] = contract.signature.inputs;
    const input = imageInput(pixels, contract.signature.preprocessing, contract.signature.layout);
    const batch = page.batch || 1; // a fixed batch is filled with copies
    const values = new input.constructor(batch * input.length);
    for (let sample = 0; sample < batch; sample++) values.set(input, sample * input.length);
    const { height, width, mean } = contract.signature.preprocessing;
    const axes = contract.signature.layout === "NCHW" ? [mean.length, height, width] : [height, width, mean.length];
    const shape = page.batch === 0 ? axes : [batch, ...axes];
    const start = performance.now();
    const outputs = await session.run({ [spec.name]: new ort.Tensor(spec.dtype, values, shape) });
    const milliseconds = performance.now() - start;
    const name = contract.signature.primary_output ?? contract.signature.outputs[0].name;
    const dims = page.batch === 0 ? outputs[name].dims : outputs[name].dims.slice(1);
    const size = dims.reduce((product, axis) => product * axis, 1);
    const prediction = predict(numbers(outputs[name]).slice(0, size), dims, contract.signature, contract.temperature);
    if (turn !== shown) return; // a later image may have been faster
    const parts = prediction.top ? bars(prediction.top) : lines(prediction.lines);
    showResult(...parts, element("p", "time", `${milliseconds.toFixed(1)} ms in this browser`));
  } catch (error) {
    if (turn === shown) showError(error.message);
  }
}

function lines([first, ...others]) {
  return [element("p", "best", first), ...others.map((text) => element("p", "", text))];
}

let failure = "The model cannot run in this browser";
try {
  await load();
  failure = "They do not match, so this page predicts nothing";
  await check();
  find("file").disabled = !page.takes_images;
  find("hint").textContent = page.takes_images
    ? "Drop an image here, or click to choose one"
    : "This page has no way to turn an image into this model's input.";
} catch (error) {
  showParity("fail", `${failure}: ${error.message}`);
  find("hint").textContent = "The model did not pass its check.";
}
onImage(show);
