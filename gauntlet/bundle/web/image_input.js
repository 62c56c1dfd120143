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
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

// One input, without the batch axis: a Float32Array in the layout NCHW or NHWC.
export function imageInput(pixels, how, layout) {
  const channels = how.mean.length;
  const box = how.resize === "crop" ? centerCrop(pixels, how) : { left: 0, top: 0, width: pixels.width, height: pixels.height };
  const input = new Float32Array(channels * how.height * how.width);
  for (let channel = 0; channel < channels; channel++) {
    const plane = resized(planeOf(pixels, box, channel, channels), box, how);
    for (let i = 0; i < plane.length; i++) {
      const scaled = f32(plane[i] * f32(1 / 255));
      const value = f32(f32(scaled - f32(how.mean[channel])) / f32(how.std[channel]));
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

function roundHalfEven(value) { // as Python's round
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 ? below + 1 : below;
}

// Bilinear with antialiasing, rows first: Pillow's Resample.c, for floats.
function resized(plane, box, how) {
  let found = plane;
  if (how.width !== box.width) found = resample(found, box.width, how.width, box.height, 1, box.width, how.width);
  if (how.height !== box.height) found = resample(found, box.height, how.height, how.width, how.width, 1, 1);
  return found;
}

// Resample `lines` lines from `size` to `wanted` values, `step` apart; lines start `line` (`lineTo` after it) apart.
function resample(plane, size, wanted, lines, step, line, lineTo) {
  const made = new Float32Array(lines * wanted);
  const scale = size / wanted, filter = Math.max(scale, 1);
  for (let to = 0; to < wanted; to++) {
    const center = (to + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - filter + 0.5));
    const end = Math.min(size, Math.trunc(center + filter + 0.5));
    const weights = [];
    for (let from = first; from < end; from++) weights.push(Math.max(0, 1 - Math.abs((from - center + 0.5) / filter)));
    const total = weights.reduce((sum, weight) => sum + weight, 0) || 1;
    for (let number = 0; number < lines; number++) {
      let sum = 0;
      weights.forEach((weight, i) => { sum += plane[number * line + (first + i) * step] * (weight / total); });
      made[number * lineTo + to * step] = sum;
    }
  }
  return made;
}
