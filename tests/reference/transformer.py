"""The Transformer in plain loops over batch, position, layer and head, in float64, written from Vaswani et al. 2017.

It imports torch alone and shares no code with the package; gradients come from autograd through the loops.
Parameters are plain dicts:

    {"source_embedding", "target_embedding", "projection": (vocabulary, d) matrices, which may be one and the same,
     "encoder": [layer, ...], "decoder": [layer, ...], "encoder_norm", "decoder_norm": (gain, bias) or None (post-norm)}
    layer: {"self": attention, "source": attention (decoder), "feed_forward": [(W_1, b_1), (W_2, b_2)],
            "self_norm", "source_norm", "feed_forward_norm": (gain, bias)}
    attention: {"query", "key", "value", "output": (W, b or None)}, every W (out, in)
"""

import math

import torch


def linear(x, weight_and_bias):
    """W x + b for one vector."""
    weight, bias = weight_and_bias
    rows = [(weight[o] * x).sum() for o in range(weight.shape[0])]
    return torch.stack(rows) + (bias if bias is not None else 0.0)


def layer_norm(x, gain_and_bias, epsilon=1e-5):
    """Ba et al. 2016 on one vector, with the variance of the population."""
    gain, bias = gain_and_bias
    mean = x.sum() / len(x)
    variance = ((x - mean) ** 2).sum() / len(x)
    return gain * (x - mean) / torch.sqrt(variance + epsilon) + bias


def position(t, d):
    """Section 3.5: sines at even places, cosines at odd ones."""
    angles = [t / 10000 ** (2 * (i // 2) / d) for i in range(d)]
    return torch.tensor([math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(angles)], dtype=torch.float64)


def embed(tokens, embedding):
    """Section 3.4 and 3.5: scaled embedding plus position, one vector a token."""
    d = embedding.shape[1]
    return [math.sqrt(d) * embedding[token] + position(t, d) for t, token in enumerate(tokens)]


def attention(query, memory, visible, parameters, heads):
    """Section 3.2 for one query vector; `visible` are the indices into `memory` it may look at."""
    width = len(query) // heads
    q = linear(query, parameters["query"])
    keys = {j: linear(memory[j], parameters["key"]) for j in visible}
    values = {j: linear(memory[j], parameters["value"]) for j in visible}
    contexts = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = {j: (q[part] * keys[j][part]).sum() / math.sqrt(width) for j in visible}
        largest = max(float(score.detach()) for score in scores.values())
        exponentials = {j: torch.exp(score - largest) for j, score in scores.items()}
        total = sum(exponentials.values())
        contexts.append(sum(exponentials[j] / total * values[j][part] for j in visible))
    return linear(torch.cat(contexts), parameters["output"])


def feed_forward(x, parameters):
    """Section 3.3, with the rectifier."""
    hidden = linear(x, parameters[0])
    return linear(torch.where(hidden > 0, hidden, torch.zeros_like(hidden)), parameters[1])


def sublayer(states, compute, norm, pre):
    """Residual connection and layer norm around `compute(position, its vector, all vectors)`, at every position."""
    inputs = [layer_norm(x, norm) for x in states] if pre else states
    outputs = [compute(t, x, inputs) for t, x in enumerate(inputs)]
    sums = [x + y for x, y in zip(states, outputs)]
    return sums if pre else [layer_norm(x, norm) for x in sums]


def encode(parameters, tokens, real, heads, pre):
    """One sentence: `real[j]` says whether anyone may look at position j. All L + 1 layers' states."""
    visible = [j for j in range(len(tokens)) if real[j]]
    states = [embed(tokens, parameters["source_embedding"])]
    for layer in parameters["encoder"]:
        x = states[-1]
        x = sublayer(
            x, lambda t, q, all_, p=layer: attention(q, all_, visible, p["self"], heads), layer["self_norm"], pre
        )
        x = sublayer(x, lambda t, q, all_, p=layer: feed_forward(q, p["feed_forward"]), layer["feed_forward_norm"], pre)
        states.append(x)
    if pre:
        states[-1] = [layer_norm(x, parameters["encoder_norm"]) for x in states[-1]]
    return states


def decode(parameters, memory, real, tokens, heads, pre):
    """The last decoder layer's states for one sentence, given the whole prefix `tokens`."""
    visible = [j for j in range(len(memory)) if real[j]]
    x = embed(tokens, parameters["target_embedding"])
    for layer in parameters["decoder"]:
        x = sublayer(
            x, lambda t, q, all_, p=layer: attention(q, all_, range(t + 1), p["self"], heads), layer["self_norm"], pre
        )
        x = sublayer(
            x, lambda t, q, all_, p=layer: attention(q, memory, visible, p["source"], heads), layer["source_norm"], pre
        )
        x = sublayer(x, lambda t, q, all_, p=layer: feed_forward(q, p["feed_forward"]), layer["feed_forward_norm"], pre)
    return [layer_norm(v, parameters["decoder_norm"]) for v in x] if pre else x


def logits(parameters, source, source_mask, target, heads, pre):
    """Scores (batch, target, vocabulary) of a batch of lists of tokens."""
    rows = []
    for row in range(len(source)):
        real = [bool(m) for m in source_mask[row]]
        memory = encode(parameters, source[row], real, heads, pre)[-1]
        states = decode(parameters, memory, real, target[row], heads, pre)
        rows.append(torch.stack([linear(s, (parameters["projection"], None)) for s in states]))
    return torch.stack(rows)


def loss(scores, labels, smoothing=0.0):
    """Szegedy et al. 2016, section 7: cross-entropy with (1 - eps) one-hot + eps uniform, where label != -100."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(labels)):
        for t, label in enumerate(labels[row]):
            if label == -100:
                continue
            z = scores[row, t]
            largest = z.detach().max()
            log_p = z - largest - torch.log(torch.exp(z - largest).sum())
            for v in range(len(z)):
                q = smoothing / len(z) + (1 - smoothing if v == label else 0.0)
                total = total - q * log_p[v]
    return total
