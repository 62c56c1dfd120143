// From the primary output of one sample to a prediction, as gauntlet/problems does it.
const MOST_CLASSES = 5, MOST_VALUES = 10;

// { top } with classes and their confidence, or { lines } of text. `shape` has no batch axis.
export function predict(values, shape, signature) {
  const label = (index) => signature.labels[index] ?? String(index);
  if (signature.task === "classification") return { top: classes(values, shape, label) };
  if (signature.task === "multi-label" && shape.length === 1) {
    const likely = [...probabilities(values).entries()].filter(([, share]) => share >= 0.5).sort(([, a], [, b]) => b - a);
    return { lines: likely.length ? likely.map(([index, share]) => `${label(index)} ${percent(share)}`) : ["none"] };
  }
  if (signature.task === "regression") {
    const named = signature.labels.length === values.length;
    return { lines: [...values].map((value, index) => `${named ? label(index) : index} ${Number(value.toPrecision(4))}`) };
  }
  const first = [...values.slice(0, MOST_VALUES)].map((value) => Number(value.toPrecision(4))).join(", ");
  return { lines: [`${signature.task}: ${shape.join(" x ") || "one value"}`, `${first}${values.length > MOST_VALUES ? ", ..." : ""}`] };
}

function classes(values, shape, label) {
  if (shape.length === 0) return [{ label: label(values[0]), confidence: null }]; // the class itself
  const sum = values.reduce((total, value) => total + value, 0);
  const areShares = values.every((value) => value >= 0) && Math.abs(sum - 1) <= 1e-3;
  const shares = areShares ? values : softmax(values);
  const best = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, MOST_CLASSES);
  return best.map((index) => ({ label: label(index), confidence: shares[index] }));
}

function softmax(values) {
  const most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = values.map((value) => Math.exp(value - most));
  const sum = powers.reduce((total, value) => total + value, 0);
  return powers.map((value) => value / sum);
}

function probabilities(values) {
  const areShares = values.every((value) => value >= 0 && value <= 1);
  return areShares ? values : values.map((value) => 1 / (1 + Math.exp(-value)));
}

const percent = (share) => `${(100 * share).toFixed(1)}%`;
