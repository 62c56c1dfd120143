// From an image to the model's input, as gauntlet/images/preprocessing.py does it; a test compares the two.
const f32 = Math.fround;

// The pixels of an image file, upright: { data, width, height }, 4 bytes a pixel.
export async function readPixels(file) {
  let bitmap;
  try {
    const asStored = { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none" };
    bitmap = await createImageBitmap(file, asStored);
  } catch {
    throw new Error("not an image, or one that this browser cannot read");
  }
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  const pixels = context.getImageData(0, 0, bitmap.width, bitmap.height);
  if (pixels.data.some((level, place) => place % 4 === 3 && level < 255)) { // a canvas loses the colors below
    throw new Error("the image is transparent in places, and browsers do not tell their colors. Save it without");
  }
  return pixels;
}

// One input, without the batch axis: a Float32Array in the layout NCHW or NHWC; the levels, if the model normalizes them.
export function imageInput(pixels, how, layout) {
  const channels = how.mean.length;
  const whole = { left: 0, top: 0, width: pixels.width, height: pixels.height };
  const box = how.resize === "crop" ? centerCrop(pixels, how) : whole;
  const inner = how.resize === "letterbox" ? innerBox(pixels, how) : { left: 0, top: 0, width: how.width, height: how.height };
  const input = new (how.in_graph ? Uint8Array : Float32Array)(channels * how.height * how.width);
  for (let channel = 0; channel < channels; channel++) {
    const color = how.channel_order === "BGR" && channels === 3 && !how.in_graph ? 2 - channel : channel;
    const part = resized(planeOf(pixels, box, color, channels), box, inner, how.interpolation);
    const plane = how.resize === "letterbox" ? padded(part, inner, how) : part;
    for (let i = 0; i < plane.length; i++) {
      const scaled = f32(plane[i] * f32(1 / 255));
      const normalized = f32(f32(scaled - f32(how.mean[channel])) / f32(how.std[channel]));
      const value = how.in_graph ? roundHalfEven(plane[i]) : normalized;
      input[layout === "NCHW" ? channel * plane.length + i : i * channels + channel] = value;
    }
  }
  return input;
}

// One channel of a part of the image; a single one is the luma of ITU-R 601-2, as Pillow computes it.
function planeOf({ data, width }, box, channel, channels) {
  const plane = new Float32Array(box.width * box.height);
  for (let y = 0; y < box.height; y++) {
    for (let x = 0; x < box.width; x++) {
      const place = 4 * ((box.top + y) * width + box.left + x);
      plane[y * box.width + x] = channels === 1
        ? (data[place] * 19595 + data[place + 1] * 38470 + data[place + 2] * 7471 + 0x8000) >> 16
        : data[place + channel];
    }
  }
  return plane;
}

function centerCrop({ width, height }, how) {
  const zoom = Math.min(height / how.height, width / how.width);
  const box = { height: Math.max(1, roundHalfEven(how.height * zoom)), width: Math.max(1, roundHalfEven(how.width * zoom)) };
  return { ...box, top: Math.floor((height - box.height) / 2), left: Math.floor((width - box.width) / 2) };
}

// The place in the input of the image between a letterbox's bars.
function innerBox({ width, height }, how) {
  const zoom = Math.min(how.height / height, how.width / width);
  const box = { height: Math.max(1, roundHalfEven(height * zoom)), width: Math.max(1, roundHalfEven(width * zoom)) };
  return { ...box, top: Math.floor((how.height - box.height) / 2), left: Math.floor((how.width - box.width) / 2) };
}

function padded(plane, inner, how) {
  const full = new Float32Array(how.height * how.width).fill(how.padding);
  for (let y = 0; y < inner.height; y++) {
    full.set(plane.subarray(y * inner.width, (y + 1) * inner.width), (inner.top + y) * how.width + inner.left);
  }
  return full;
}

function roundHalfEven(value) { // as Python's round
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 ? below + 1 : below;
}

// Pillow's kernels (Resample.c): how far each reaches, and its weight at a distance.
const KERNELS = {
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  bicubic: [2, (x) => cubic(Math.abs(x))],
  lanczos: [3, (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0)],
};
const cubic = (x) => (x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0);
const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

// A plane of the size of `box` at the size of `to`: rows first, for floats; kernels that overshoot are limited.
function resized(plane, box, to, interpolation) {
  let found = plane;
  if (to.width !== box.width) found = resample(found, interpolation, box.width, to.width, box.height, 1, box.width, to.width);
  if (to.height !== box.height) found = resample(found, interpolation, box.height, to.height, to.width, to.width, 1, 1);
  return ["bicubic", "lanczos"].includes(interpolation) ? found.map((value) => Math.min(Math.max(value, 0), 255)) : found;
}

// Resample `lines` lines from `size` to `wanted` values, `step` apart; lines start `line` (`lineTo` after it) apart.
function resample(plane, interpolation, size, wanted, lines, step, line, lineTo) {
  const made = new Float32Array(lines * wanted);
  const scale = size / wanted, stretch = Math.max(scale, 1);
  for (let to = 0; to < wanted; to++) {
    const center = (to + 0.5) * scale;
    const [first, weights] = weightsAt(center, size, stretch, interpolation);
    const total = weights.reduce((sum, weight) => sum + weight, 0) || 1;
    for (let number = 0; number < lines; number++) {
      let sum = 0;
      weights.forEach((weight, i) => { sum += plane[number * line + (first + i) * step] * (weight / total); });
      made[number * lineTo + to * step] = sum;
    }
  }
  return made;
}

// The first value that counts for one result, and the weights from there on.
function weightsAt(center, size, stretch, interpolation) {
  if (interpolation === "nearest") return [Math.min(size - 1, Math.floor(center)), [1]];
  const [reach, kernel] = KERNELS[interpolation];
  const first = Math.max(0, Math.trunc(center - reach * stretch + 0.5));
  const end = Math.min(size, Math.trunc(center + reach * stretch + 0.5));
  return [first, Array.from({ length: end - first }, (_, i) => kernel((first + i - center + 0.5) / stretch))];
}
