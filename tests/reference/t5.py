"""T5's decoder in plain loops over position, layer and head, in float64, written from Raffel et al. 2020, section 2.1.

It imports torch alone. Gated feed-forward layers: Shazeer 2020, (GELU(W_0 x) * W_1 x) W_2, its GELU by tanh, as T5 1.1
and MADLAD have it. Parameters:

    {"embedding", "projection": (vocabulary, d), "bias": (buckets, heads), "norm": (d,), "scale": of the last states,
     "layers": [{"self", "source": {"q", "k", "v", "o": W (out, in)}, "ff": [W, W] or gated [W_0, W_1, W_2],
                 "self_norm", "source_norm", "ff_norm": (d,)}]}
"""

import math

import torch


def norm(x, gain, epsilon=1e-6):
    """ "A simplified version of layer normalization where the activations are only rescaled and no additive bias"."""
    return gain * x / torch.sqrt((x**2).sum() / len(x) + epsilon)


def bucket(distance, buckets, farthest):
    """Half of the buckets for a distance each, half growing logarithmically "up to an offset of" `farthest`."""
    exact = buckets // 2
    if distance < exact:
        return distance
    grown = math.log(distance / exact) / math.log(farthest / exact) * (buckets - exact)
    return min(exact + int(grown), buckets - 1)


def attention(query, memory, parameters, heads, bias):
    """Attention of one vector over all of memory, without a scale; `bias(j, head)` is added to the energy of j."""
    q = parameters["q"] @ query
    width, contexts = len(q) // heads, []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        keys, values = ([(parameters[name] @ x)[part] for x in memory] for name in "kv")
        energies = torch.stack([(q[part] * key).sum() + bias(j, head) for j, key in enumerate(keys)])
        weights = torch.exp(energies - energies.max())
        contexts.append(sum(weight / weights.sum() * value for weight, value in zip(weights, values)))
    return parameters["o"] @ torch.cat(contexts)


def feed_forward(x, weights):
    if len(weights) == 2:
        return weights[1] @ (weights[0] @ x).clamp(min=0)
    y = weights[0] @ x
    gelu = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
    return weights[2] @ (gelu * (weights[1] @ x))


def scores(parameters, memory, tokens, heads, farthest):
    """Scores (vocabulary,) of what follows `tokens`, given the source's states, a list of vectors."""
    table, states = parameters["bias"], [parameters["embedding"][token] for token in tokens]
    for layer in parameters["layers"]:
        normed, added = [norm(x, layer["self_norm"]) for x in states], []
        for t in range(len(states)):
            bias = lambda j, head, t=t: table[bucket(t - j, len(table), farthest), head]  # noqa: E731
            added.append(attention(normed[t], normed[: t + 1], layer["self"], heads, bias))
        states = [x + y for x, y in zip(states, added)]
        states = [
            x + attention(norm(x, layer["source_norm"]), memory, layer["source"], heads, lambda j, head: 0.0)
            for x in states
        ]
        states = [x + feed_forward(norm(x, layer["ff_norm"]), layer["ff"]) for x in states]
    return parameters["projection"] @ (parameters["scale"] * norm(states[-1], parameters["norm"]))
