// Shows the models of this server, sends it the image that is dropped, and draws the prediction.
const find = (id) => document.getElementById(id);
const element = (name, classes, text) => {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text; // never as HTML: labels come from the model
  return made;
};
let shown = 0;

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

async function predict(file) {
  const turn = ++shown;
  const image = find("image");
  URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(file);
  image.onload = () => image.classList.toggle("large", image.naturalWidth > 200);
  image.onerror = () => { image.hidden = true; find("hint").hidden = false; };
  image.hidden = false;
  find("hint").hidden = true;
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
  find("result").replaceChildren(...parts, element("p", "time", time));
}

function bars(top) {
  const rows = top.filter((entry) => entry.confidence !== null).map((entry) => {
    const row = element("div", "row");
    const track = element("div", "track");
    const share = entry.calibrated ?? entry.confidence;
    track.append(bar(share));
    row.append(element("span", "", entry.label), track, element("span", "share", `${(100 * share).toFixed(1)} %`));
    return row;
  });
  return [element("p", "best", top[0].label), ...rows];
}

function bar(share) { // an SVG, because the page's policy allows no inline style
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  const rectangle = document.createElementNS(space, "rect");
  rectangle.setAttribute("width", `${100 * share}%`);
  rectangle.setAttribute("height", "100%");
  drawing.append(rectangle);
  return drawing;
}

function showError(text) {
  find("result").replaceChildren(element("p", "error", text));
}

find("file").addEventListener("change", (event) => event.target.files[0] && predict(event.target.files[0]));
find("model").addEventListener("change", showModel);
find("token").addEventListener("change", listModels);
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  find("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    find("drop").classList.toggle("over", kind === "dragenter" || kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files[0] && !find("file").disabled) predict(event.dataTransfer.files[0]);
  });
}
listModels();
