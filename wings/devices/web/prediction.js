// From the primary output of one sample to a prediction, as gauntlet/problems does it.
const MOST_CLASSES = 5, MOST_VALUES = 10, ROUNDING = 0.01;

// { top } with classes and their confidence, or { lines } of text. `shape` has no batch axis.
export function predict(values, shape, signature, temperature = null) {
  const label = (index) => signature.labels[index] ?? String(index);
  if (signature.task === "classification") return { top: classes(values, signature, temperature, label) };
  if (signature.task === "multi-label" && shape.length === 1) {
    const likely = [...probabilities(values, signature.logit).entries()].filter(([, share]) => share >= 0.5).sort(([, a], [, b]) => b - a);
    return { lines: likely.length ? likely.map(([index, share]) => `${label(index)} ${percent(share)}`) : ["none"] };
  }
  if (signature.task === "regression") {
    const named = signature.labels.length === values.length;
    return { lines: [...values].map((value, index) => `${named ? label(index) : index} ${Number(value.toPrecision(4))}`) };
  }
  const first = [...values.slice(0, MOST_VALUES)].map((value) => Number(value.toPrecision(4))).join(", ");
  return { lines: [`${signature.task}: ${shape.join(" x ") || "one value"}`, `${first}${values.length > MOST_VALUES ? ", ..." : ""}`] };
}

function classes(values, signature, temperature, label) {
  const output = signature.outputs.find(({ name }) => name === signature.primary_output) ?? signature.outputs[0];
  const [only] = values, isNumber = output.dtype.startsWith("float") && (signature.logit || isShare(only));
  if (values.length === 1 && !isNumber) { // the class itself
    return [{ label: signature.labels.join() === "-1,1" ? String(only) : label(only), confidence: null }];
  }
  const second = Math.min(Math.max(only, 0), 1);
  const scores = values.length > 1 ? [...values] : signature.logit ? [0, only] : [1 - second, second];
  const sum = scores.reduce((total, value) => total + value, 0);
  const areShares = scores.every((value) => value >= 0) && Math.abs(sum - 1) <= Math.min(scores.length / 500, 0.5);
  const shares = areShares ? scores : softmax(scores);
  if (shares.some(Number.isNaN)) return [{ label: "no class (scores are not finite)", confidence: null }];
  const logits = areShares ? scores.map((value) => Math.log(Math.max(value, 1e-12))) : scores;
  const shown = temperature === null ? shares : softmax(logits.map((value) => value / temperature));
  const best = signature.threshold === null
    ? [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, MOST_CLASSES)
    : shares[1] >= signature.threshold ? [1, 0] : [0, 1];
  return best.map((index) => ({ label: label(index), confidence: shown[index] }));
}

const isShare = (value) => value >= -ROUNDING && value <= 1 + ROUNDING;

function softmax(values) {
  const most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = values.map((value) => Math.exp(value - most));
  const sum = powers.reduce((total, value) => total + value, 0);
  return powers.map((value) => value / sum);
}

function probabilities(values, logit) {
  const areShares = !logit && values.every(isShare);
  return values.map((value) => (areShares ? Math.min(Math.max(value, 0), 1) : 1 / (1 + Math.exp(-value))));
}

const percent = (share) => `${(100 * share).toFixed(1)}%`;
