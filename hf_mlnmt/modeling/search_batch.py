"""The batch of search.py: sources, caches and masks of the sentences that are still being translated.

A step gives the decoder one position for each beam (beam_cache.py), a mask with each beam's history, and its place in
the sentence. Source and histories are padded to whole blocks, as softmax on a CPU likes them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .beam_cache import BeamCache, of_parents, padded
from .search_step import Mask, Place, attend

# What the loops get from generate() and hand on in another form, or not at all.
HANDLED = {"encoder_outputs", "attention_mask", "past_key_values", "use_cache", "logits_to_keep"}


class Sentences:
    """The sentences that are still being translated: their sources, caches, and what each beam may look back at."""

    def __init__(self, model: Any, width: int, rows: int, kwargs: dict[str, Any]):
        self.model, self.width = model, width
        self.count = rows // width
        self.ids = torch.arange(self.count, device=model.device)
        self.encoder_outputs = kwargs["encoder_outputs"]
        states = self.encoder_outputs.last_hidden_state
        real = kwargs.get("attention_mask")
        real = states.new_ones(states.shape[:2]) if real is None else real
        self.dtype, self.hide = states.dtype, torch.finfo(states.dtype).min
        # generate() has repeated the source for every beam: once is enough, and the copies are let go.
        blank = padded(states.shape[1]) - states.shape[1]
        self.real = nn.functional.pad(real[::width].bool(), (0, blank))
        self._change_source(lambda value: pad_source(value[::width], blank))
        self.cache = BeamCache(model.config, self.real)
        self.next_pruning = 64
        self.others = {k: v for k, v in kwargs.items() if k not in HANDLED | {"streamer", "synced_gpus"}}
        self.written_out = None
        if model.device.type == "cpu":
            self.others["attention_function"] = attend
            self.written_out = None if self.others.keys() - {"attention_function"} else model.decoder_step()

    def _change_source(self, change: Callable[[Tensor], Tensor]) -> None:
        for name, value in self.encoder_outputs.items():
            if isinstance(value, Tensor):
                self.encoder_outputs[name] = change(value)
        mask = torch.zeros(self.real.shape, dtype=self.dtype, device=self.real.device)
        self.source_mask = Mask(mask.masked_fill_(~self.real, self.hide)[:, None, None, :])

    def begin(self, prompt: Tensor) -> Tensor:
        """Read the prompt (sentences, length), one row for each sentence: logits (sentences, 1, vocabulary)."""
        count, self.length = prompt.shape
        mask = torch.full((self.length, padded(self.length)), self.hide, dtype=self.dtype, device=prompt.device)
        mask = mask.triu(1).expand(count, 1, -1, -1)
        step, memory = self.written_out, self.memory()
        if step is not None and self.length == 1 and step.read_source(memory, self.cache):
            logits = step(
                prompt, 0, Place(1, self.cache, Mask(mask.contiguous()), memory, self.source_mask, {}, self.features())
            ).float()
        else:
            logits = self._forward(prompt, decoder_attention_mask=mask, logits_to_keep=1)
        self.cache.expand(self.width)
        self.visible = mask[:, :, -1:].repeat(1, 1, self.width, 1)
        return logits

    def memory(self) -> Tensor:
        """What the decoder reads of the source."""
        return self.encoder_outputs.get("memory", self.encoder_outputs.last_hidden_state)

    def features(self) -> Tensor | None:
        """What else the encoder handed on."""
        return self.encoder_outputs.get("features")

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Tokens (sentences, width), each behind beam parents[...]: logits (sentences, width, vocabulary)."""
        if parents is not None:
            self.visible = of_parents(self.visible.squeeze(1), parents).unsqueeze(1)
            self.cache.reorder(parents)
            if self.cache.slots >= self.next_pruning:
                self.prune()
        start, end = self.cache.slots, self.cache.slots + self.width
        missing = padded(end) - self.visible.shape[-1]
        if missing:
            self.visible = nn.functional.pad(self.visible, (0, missing), value=self.hide)
        self.visible[..., start:end].diagonal(dim1=2, dim2=3).zero_()
        self.length += 1
        if self.written_out is not None:
            place = Place(
                self.width, self.cache, Mask(self.visible), self.memory(), self.source_mask, {}, self.features()
            )
            return self.written_out(tokens, self.length - 1, place).float()
        positions = torch.full((1, 1), self.length - 1, device=tokens.device)
        return self._forward(tokens, decoder_attention_mask=self.visible, decoder_position_ids=positions)

    def _forward(self, tokens: Tensor, **inputs) -> Tensor:
        outputs = self.model(
            encoder_outputs=self.encoder_outputs,
            attention_mask=self.source_mask.tensor,
            decoder_input_ids=tokens,
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
            **inputs,
            **self.others,
        )
        return outputs.logits.float()

    def spread(self, tokens: Tensor, pad: Tensor | int) -> Tensor:
        """Tokens (sentences here, width) as a column of the whole batch, `pad` where sentences have left."""
        if len(tokens) == self.count:
            return tokens
        column = tokens.new_zeros(self.count, self.width) + pad
        column[self.ids] = tokens
        return column

    def prune(self) -> None:
        """Forget the slots that no beam of a sentence looks back at: most beams share most of their history."""
        alive = (self.visible == 0).any(dim=2)[:, 0]  # (sentences, slots)
        count = int(alive.sum(dim=1).max())
        self.next_pruning = max(64, 3 * count // 2)
        if 4 * count > 3 * self.cache.slots:
            return
        slots = alive.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
        self.cache.select_slots(slots)
        visible = self.visible.gather(3, slots[:, None, None, :].expand(-1, 1, self.width, -1))
        self.visible = nn.functional.pad(visible, (0, padded(count) - count), value=self.hide)

    def keep(self, rows: Tensor) -> None:
        """Keep these sentences (indices into those that are here); the others have ended."""
        longest = padded(int(self.real[rows].any(dim=0).nonzero().max()) + 1)
        self.ids, self.real = self.ids[rows], self.real[rows, :longest]
        self._change_source(lambda value: value[rows, :longest])
        self.visible = self.visible[rows]
        self.cache.select(rows, longest)


def pad_source(states: Tensor, blank: int) -> Tensor:
    """(batch, source, ...) with `blank` positions of zeros behind: always a copy."""
    return torch.cat([states, states.new_zeros(len(states), blank, *states.shape[2:])], dim=1)
