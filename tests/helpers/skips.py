"""Why a test of Transformers does not run here: pattern of its name -> reason. conftest.py fails any other skip."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import transformers

_CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
# Other releases have other tests: what they skip beyond this table is no failure.
OF_THIS_RELEASE = f"transformers=={transformers.__version__}" in _CONSTRAINTS.read_text().split()

_GPU = "needs an accelerator (run on one, it runs)"
_FLASH = "needs an accelerator and the flash-attn package"
_KERNELS = "needs an accelerator and the kernels package"
_DEEPSPEED = "needs an accelerator and the deepspeed package"
_COMPOSITE = "for models made of several configs; ours are flat"
_ROPE = "our positions are sinusoidal, added to the embeddings: there is no rotary embedding"
_EXPERTS = "for mixtures of experts"

SKIPS: dict[str, str] = {
    "test_can_load_with_device_context_manager": _GPU,
    "test_can_load_with_global_device_set": _GPU,
    "test_cpu_offload": _GPU,
    "test_disk_offload_*": _GPU,
    "test_flex_attention_with_grads": _GPU,
    "test_sdpa_can_compile_dynamic": _GPU + "; tests/zoo/test_zoo_training.py compiles on the CPU",
    "test_torch_compile_for_training": _GPU + "; tests/zoo/test_zoo_training.py compiles a training step on the CPU",
    "test_sdpa_can_dispatch_on_flash": _GPU,
    "test_model_parallelism": "needs two accelerators",
    "test_flash_attn_kernels_mps_*": "needs an Apple accelerator",
    "test_flash_attn_kernels_inference_equivalence": _KERNELS,
    "test_flash_attn_?_*": _FLASH,
    "test_kernels_can_load_without_crashing": _KERNELS,
    "test_resize_*_with_deepspeed*": _DEEPSPEED,
    "test_attn_implementation_composite_models": _COMPOSITE,
    "test_can_set_attention_dynamically_composite_model": _COMPOSITE,
    "test_sdpa_can_dispatch_composite_models": _COMPOSITE,
    "test_internal_model_config_and_subconfig_are_same": _COMPOSITE,
    "test_model_rope_*": _ROPE,
    "test_vision_axial_rope": _ROPE,
    "test_resize_position_vector_embeddings": "the sinusoidal table is computed, not resized",
    "test_eager_matches_batched_and_grouped_inference_*": _EXPERTS,
    "test_moe_models_record_router_logits": _EXPERTS,
    "test_output_router_logits_from_config": _EXPERTS,
    "test_causal_lm_loss_honors_shift_labels": "for decoder-only heads",
    "test_encoder_decoder_loss_no_double_shift": "for encoder-decoders",
    "test_can_capture_specific_layers_hidden_states": "reads `hidden_states`, which an encoder-decoder splits into "
    "encoder_hidden_states and decoder_hidden_states; tests/zoo/test_zoo.py checks those",
    "test_can_load_from_already_mapped_keys": "for renamed checkpoints; our weights keep their names",
    "test_reverse_loading_mapping": "for renamed checkpoints; our weights keep their names",
    "test_keep_in_fp32_modules*": "no module of ours asks to stay in float32",
    "test_sliding_window_mask": "no attention of ours has a sliding window",
    "test_tp_plan_matches_params": "we ship no tensor-parallel plan: the models fit one device many times over",
}


def reason_for(name: str) -> str | None:
    """The written reason for skipping the test `name`."""
    return next((reason for pattern, reason in SKIPS.items() if fnmatch(name, pattern)), None)
