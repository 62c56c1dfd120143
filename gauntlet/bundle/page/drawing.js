// What the pages of `gauntlet serve` and `gauntlet bundle --web` share: the dropped image, and the prediction beside it.
export const find = (id) => document.getElementById(id);

export function element(name, classes, text) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text; // never as HTML: labels come from the model
  return made;
}

// Call `predict(file)` for every image that is dropped or chosen.
export function onImage(predict) {
  find("file").addEventListener("change", (event) => event.target.files[0] && predict(event.target.files[0]));
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    find("drop").addEventListener(kind, (event) => {
      event.preventDefault();
      find("drop").classList.toggle("over", kind === "dragenter" || kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files[0] && !find("file").disabled) predict(event.dataTransfer.files[0]);
    });
  }
}

export function showImage(file) {
  const image = find("image");
  URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(file);
  image.onload = () => image.classList.toggle("large", image.naturalWidth > 200);
  image.onerror = () => { image.hidden = true; find("hint").hidden = false; };
  image.hidden = false;
  find("hint").hidden = true;
}

export function showResult(...parts) {
  find("result").replaceChildren(...parts);
}

export function showError(text) {
  showResult(element("p", "error", text));
}

// The best class, and a bar for each one with a confidence.
export function bars(top) {
  const rows = top.filter((entry) => Number.isFinite(entry.confidence)).map((entry) => {
    const row = element("div", "row");
    const track = element("div", "track");
    const share = entry.calibrated ?? entry.confidence;
    track.append(bar(share));
    row.append(element("span", "", entry.label), track, element("span", "share", `${(100 * share).toFixed(1)} %`));
    return row;
  });
  return [element("p", "best", top[0].label), ...rows];
}

function bar(share) { // an SVG, because the pages' policy allows no inline style
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  const rectangle = document.createElementNS(space, "rect");
  rectangle.setAttribute("width", `${100 * share}%`);
  rectangle.setAttribute("height", "100%");
  drawing.append(rectangle);
  return drawing;
}
