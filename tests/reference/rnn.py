"""The attentive LSTM in plain loops over batch, position and unit, in float64.

Written from the paper on inner attention (section 2.1), Luong et al. 2015 and the gates as PyTorch prints them. It
imports torch alone and shares no code with the package; gradients come from autograd through the loops.
Parameters are plain dicts:

    {"source_embedding", "target_embedding", "projection": (vocabulary, d), "scale": what embeddings are multiplied by,
     "encoder": [(forward cell, backward cell), ...], "decoder": [cell, ...], "attention": W_a, "combine": W_c}
    cell: (W, U, b, b'), W (4 units, inputs) with the gates i, f, g, o from the top

`drop` is what takes the place of dropout between layers and on the attentional state.
"""

import torch


def nothing(x):
    """No dropout."""
    return x


def product(matrix, vector):
    """W x, row by row."""
    return torch.stack([(row * vector).sum() for row in matrix])


def sigmoid(x):
    return 1.0 / (1.0 + torch.exp(-x))


def cell(parameters, x, hidden, memory):
    """One step of an LSTM: the new h and c."""
    weight, recurrent, bias, other_bias = parameters
    units = len(hidden)
    gates = product(weight, x) + bias + product(recurrent, hidden) + other_bias
    entry, forget, new, exit_ = (gates[i * units : (i + 1) * units] for i in range(4))
    memory = sigmoid(forget) * memory + sigmoid(entry) * torch.tanh(new)
    return sigmoid(exit_) * torch.tanh(memory), memory


def run(parameters, inputs, real):
    """h at every position in the order of `inputs`, None where nothing is real; and the last h and c."""
    hidden = memory = torch.zeros(parameters[1].shape[1], dtype=torch.float64)
    found = []
    for x, there in zip(inputs, real):
        if there:
            hidden, memory = cell(parameters, x, hidden, memory)
        found.append(hidden if there else None)
    return found, (hidden, memory)


def encode(parameters, tokens, real, drop=nothing):
    """One sentence: h_1 .. h_n of the last layer (None at padding), and the last (h, c) of every layer."""
    states = [parameters["scale"] * parameters["source_embedding"][token] for token in tokens]
    ends = []
    for index, (forward, backward) in enumerate(parameters["encoder"]):
        states = [drop(x) if there else None for x, there in zip(states, real)] if index else states
        ahead, last = run(forward, states, real)
        back, first = run(backward, states[::-1], real[::-1])
        back = back[::-1]
        states = [torch.cat([a, b]) if there else None for a, b, there in zip(ahead, back, real)]
        ends.append((torch.cat([last[0], first[0]]), torch.cat([last[1], first[1]])))
    return states, ends


def attend(parameters, state, memory):
    """Luong's attentional state of one s over the real h_i."""
    real = [h for h in memory if h is not None]
    scores = torch.stack([(state * product(parameters["attention"], h)).sum() for h in real])
    weights = torch.exp(scores - scores.max())
    weights = weights / weights.sum()
    context = sum(weight * h for weight, h in zip(weights, real))
    return torch.tanh(product(parameters["combine"], torch.cat([context, state])))


def decode(parameters, memory, starts, tokens, feeding, drop=nothing):
    """The attentional states of one sentence, given all of its target's input."""
    states, found = list(starts), []
    attentional = torch.zeros_like(starts[0][0])
    for token in tokens:
        x = parameters["scale"] * parameters["target_embedding"][token]
        x = torch.cat([x, attentional]) if feeding else x
        for index, layer in enumerate(parameters["decoder"]):
            states[index] = cell(layer, x, *states[index])
            x = drop(states[index][0])
        attentional = drop(attend(parameters, states[-1][0], memory))
        found.append(attentional)
    return found


def logits(parameters, source, source_mask, target, feeding, drop=nothing):
    """Scores (batch, target, vocabulary) of a batch of lists of tokens."""
    rows = []
    for row in range(len(source)):
        memory, ends = encode(parameters, source[row], [bool(m) for m in source_mask[row]], drop)
        states = decode(parameters, memory, ends, target[row], feeding, drop)
        rows.append(torch.stack([product(parameters["projection"], state) for state in states]))
    return torch.stack(rows)
