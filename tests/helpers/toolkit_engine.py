"""JoeyNMT, OpenNMT-py or Eole themselves, in a process of their own: `NAME FOLDER` writes FOLDER/logits.bin.

Each loads its checkpoint with its own code; tokens are those of toolkit_checkpoints.py.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.toolkit_checkpoints import IDS, TARGET


def joeynmt(folder: Path) -> torch.Tensor:
    from joeynmt.config import load_config, parse_global_args
    from joeynmt.helpers import load_checkpoint
    from joeynmt.model import build_model
    from joeynmt.vocabulary import build_vocab

    content = load_config(folder / "config.yaml")
    content["training"] |= {"batch_size": 1, "learning_rate": 0.1}
    args = parse_global_args(content, mode="test")
    vocabularies = build_vocab(args.data, model_dir=folder)
    model = build_model(args.model, *vocabularies).eval()
    model.load_state_dict(load_checkpoint(folder / "best.ckpt", "cpu")["model_state"])
    mask = (IDS != 1).unsqueeze(1)
    memory, hidden, _, _ = model(
        return_type="encode", src=IDS, src_length=mask.sum(-1).flatten(), src_mask=mask, trg_input=None, trg_mask=None
    )
    return model(
        return_type="decode", trg_input=TARGET, encoder_output=memory, encoder_hidden=hidden, src_mask=mask,
        unroll_steps=TARGET.shape[1], decoder_hidden=None, trg_mask=torch.ones(len(TARGET), 1, 1, dtype=torch.bool),
    )[0]  # fmt: skip


def opennmt(folder: Path) -> torch.Tensor:
    from argparse import Namespace

    from onmt.inputters.inputter import dict_to_vocabs
    from onmt.model_builder import build_base_model
    from onmt.opts import train_opts
    from onmt.utils.parse import ArgumentParser

    torch.serialization.add_safe_globals([Namespace])  # later versions of PyTorch ask for that
    content = torch.load(folder / "model_step_10.pt")
    parser = ArgumentParser(conflict_handler="resolve")
    train_opts(parser)
    options = {action.dest: action.default for action in parser._actions} | vars(content["opt"])
    options |= {"self_attn_type": "scaled-dot", "attention_dropout": 0.0, "dropout": 0.0}
    model = build_base_model(Namespace(**options), dict_to_vocabs(content["vocab"]))
    model.load_state_dict(content, precision=torch.float32, device=torch.device("cpu"), strict=True, offset=0)
    model.eval()
    lengths = (IDS != 1).sum(1)
    memory, state, lengths = model.encoder(IDS.unsqueeze(-1), lengths)
    model.decoder.init_state(IDS.unsqueeze(-1), memory, state)
    states, _ = model.decoder(TARGET.unsqueeze(-1), memory, src_len=lengths)
    return model.generator(states)


def eole(folder: Path) -> torch.Tensor:
    import json

    from eole.config.models import TransformerModelConfig
    from eole.config.run import PredictConfig
    from eole.inputters.inputter import dict_to_vocabs
    from eole.models.model import get_model_class
    from safetensors.torch import load_file

    content = json.loads((folder / "config.json").read_text())
    config = TransformerModelConfig(**content["model"])
    config.update_model_opts()
    vocabularies = dict_to_vocabs(json.loads((folder / "vocab.json").read_text()))
    running = PredictConfig(model_path=[str(folder)], src="x", gpu_ranks=[])
    model = get_model_class(config).build_blocks(config, vocabularies, running)
    model.build_generator(config, running, vocabularies)
    state = load_file(folder / "model.00.safetensors")
    if config.share_embeddings:
        state["tgt_emb.embeddings.weight"] = state["src_emb.embeddings.weight"]
        state["generator.weight"] = state["tgt_emb.embeddings.weight"]
    model.load_state_dict(state, strict=True)
    model.eval()
    padding = IDS == 1
    memory, _ = model.encoder(model.src_emb(IDS), pad_mask=padding.unsqueeze(1))
    states, _ = model.decoder(
        model.tgt_emb(TARGET), enc_out=memory, src_pad_mask=padding.unsqueeze(1),
        tgt_pad_mask=torch.zeros(len(TARGET), 1, TARGET.shape[1], dtype=torch.bool),
    )  # fmt: skip
    return model.generator(states)


if __name__ == "__main__":
    with torch.no_grad():
        torch.save(globals()[sys.argv[1]](Path(sys.argv[2])), Path(sys.argv[2]) / "logits.bin")
