// The golden samples of the bundle, run in this browser.
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, bool: Uint8Array, int64: BigInt64Array, uint64: BigUint64Array,
  int32: Int32Array, uint32: Uint32Array, int16: Int16Array, uint16: Uint16Array, int8: Int8Array, uint8: Uint8Array,
  float16: Uint16Array, // its bits; not every browser has a Float16Array
};

// The values of a tensor as JavaScript numbers.
export function numbers({ type, data }) {
  if (type === "float16" && data instanceof Uint16Array) return Float64Array.from(data, half);
  return Float64Array.from(data, Number); // 64-bit integers too
}

function half(bits) { // IEEE 754 binary16
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

// Run every golden call; return for each output the largest difference over its largest magnitude, as Python does.
export async function goldenDifferences(ort, session, page, bytes) {
  const stored = (group) => page.tensors.filter((entry) => entry.group === group);
  const samples = stored("inputs")[0].shape[0];
  const size = page.batch || 1;
  const found = new Map(stored("outputs").map((entry) => [entry.name, { difference: 0, magnitude: 0 }]));
  let calls = 0, milliseconds = 0;
  for (let start = 0; start < samples; start += size) {
    const rows = Array.from({ length: size }, (_, row) => Math.min(start + row, samples - 1)); // the last is repeated
    const feed = Object.fromEntries(stored("inputs").map((entry) => [entry.name, input(ort, entry, bytes, rows, page.batch)]));
    const begin = performance.now();
    const outputs = await session.run(feed);
    milliseconds += performance.now() - begin;
    calls += 1;
    for (const entry of stored("outputs")) {
      const wanted = numbers({ type: entry.dtype, data: values(entry, bytes, rows) });
      const actual = outputs[entry.name] ? numbers(outputs[entry.name]) : new Float64Array();
      compare(found.get(entry.name), actual, wanted);
    }
  }
  const outputs = [...found].map(([name, { difference, magnitude }]) => ({ name, error: difference / (magnitude || 1) }));
  return { outputs, samples, milliseconds: milliseconds / calls };
}

function input(ort, entry, bytes, rows, batch) {
  const shape = batch === 0 ? entry.shape.slice(1) : [rows.length, ...entry.shape.slice(1)];
  return new ort.Tensor(entry.dtype, values(entry, bytes, rows), shape);
}

function values(entry, bytes, rows) {
  const Kind = ARRAYS[entry.dtype];
  const size = entry.shape.slice(1).reduce((product, axis) => product * axis, 1);
  const made = new Kind(rows.length * size);
  rows.forEach((row, place) => {
    const start = entry.offset + row * size * Kind.BYTES_PER_ELEMENT;
    made.set(new Kind(bytes.slice(start, start + size * Kind.BYTES_PER_ELEMENT)), place * size);
  });
  return made;
}

function compare(worst, actual, wanted) {
  if (actual.length !== wanted.length) worst.difference = Infinity;
  for (let i = 0; i < wanted.length; i++) {
    const same = Object.is(actual[i], wanted[i]) || actual[i] === wanted[i];
    const difference = same ? 0 : Math.abs(actual[i] - wanted[i]);
    if (difference > worst.difference || Number.isNaN(difference)) worst.difference = difference; // NaN stays
    if (Number.isFinite(wanted[i])) worst.magnitude = Math.max(worst.magnitude, Math.abs(wanted[i]));
  }
}
