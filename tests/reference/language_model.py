"""The language model in plain loops, in float64: the Transformer's decoder without its attention over the source.

Written from the thesis on monolingual data, section 4.1; parameters as in reference/transformer.py.
"""

import torch
from reference.transformer import attention, embed, feed_forward, layer_norm, linear, sublayer


def decode(parameters, tokens, heads, pre):
    """The last layer's states for one sentence, each from the tokens up to its own."""
    x = embed(tokens, parameters["target_embedding"])
    for layer in parameters["decoder"]:
        x = sublayer(
            x, lambda t, q, all_, p=layer: attention(q, all_, range(t + 1), p["self"], heads), layer["self_norm"], pre
        )
        x = sublayer(x, lambda t, q, all_, p=layer: feed_forward(q, p["feed_forward"]), layer["feed_forward_norm"], pre)
    return [layer_norm(v, parameters["decoder_norm"]) for v in x] if pre else x


def log_probability(parameters, tokens, heads, pre, bias=None):
    """log p(e_i | e_0^{i-1}) for i = 1 .. I of one sentence e_0 .. e_I, and the scores of every position."""
    scores = [linear(s, (parameters["projection"], bias)) for s in decode(parameters, tokens[:-1], heads, pre)]
    found = []
    for z, token in zip(scores, tokens[1:]):
        largest = z.detach().max()
        found.append(z[token] - largest - torch.log(torch.exp(z - largest).sum()))
    return torch.stack(found), torch.stack(scores)
