// Shows the models of this server, sends it the image that is dropped, and draws the prediction.
import { bars, element, find, onImage, showError, showImage, showResult } from "./drawing.js";

let shown = 0;
let sent = null; // the image

async function ask(path, options = {}) {
  const token = find("token").value;
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { ...options, headers: { ...headers, ...options.headers } });
  if (response.status === 401) find("token-field").hidden = false;
  const body = await response.json();
  if (!response.ok) throw new Error(body.error ?? `status ${response.status}`);
  return body;
}

async function listModels() {
  try {
    const models = await ask("v2/repository/index", { method: "POST", body: "{}" });
    const names = models.filter((model) => model.state === "READY").map((model) => model.name);
    find("model").replaceChildren(...names.map((name) => element("option", "", name)));
    if (names.length) await showModel();
    else showError("No model is loaded.");
  } catch (error) {
    showError(error.message);
  }
}

async function showModel() {
  const name = find("model").value;
  const model = await ask(`v2/models/${name}`);
  const shapes = model.inputs.map((input) => `${input.name} ${input.datatype} [${input.shape.join(", ")}]`).join("; ");
  find("facts").textContent = `${model.parameters.task}, version ${model.versions[0]}, ${shapes}`;
  const secret = find("token").value ? ' -H "Authorization: Bearer $TOKEN"' : "";
  find("command").textContent = model.parameters.takes_images
    ? `curl${secret} --data-binary @image.png ${new URL(`v2/models/${name}/predict`, location.href)}`
    : `curl${secret} ${new URL(`v2/models/${name}`, location.href)}`;
  find("file").disabled = !model.parameters.takes_images;
  find("hint").textContent = model.parameters.takes_images
    ? "Drop an image here, or click to choose one"
    : "This model takes tensors, not images; see the API.";
}

async function changeModel() {
  shown++; // what is on its way is of the other model
  showResult();
  try {
    await showModel();
  } catch (error) {
    return showError(error.message);
  }
  if (sent && !find("file").disabled) await predict(sent);
}

async function predict(file) {
  const turn = ++shown;
  sent = file;
  showImage(file);
  try {
    const found = await ask(`v2/models/${find("model").value}/predict`, { method: "POST", body: file });
    if (turn === shown) showPrediction(found); // a later image may have been faster
  } catch (error) {
    if (turn === shown) showError(error.message);
  }
}

function showPrediction(found) {
  const [prediction] = found.predictions;
  const parts = prediction.top ? bars(prediction.top) : [element("pre", "", JSON.stringify(prediction, null, 1))];
  const time = `${found.milliseconds.toFixed(1)} ms on the server, version ${found.model_version}`;
  showResult(...parts, element("p", "time", time));
}

onImage(predict);
find("model").addEventListener("change", changeModel);
find("token").addEventListener("change", listModels);
listModels();
