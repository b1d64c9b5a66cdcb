"""Importing hf_mlnmt is cheap and lets the Auto classes know the models, in whatever order things are imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from helpers import fresh

from hf_mlnmt.zoo.systems import architectures

CONFIG = "from transformers import AutoConfig\nprint(AutoConfig.for_model('mlnmt-dual-context').__class__.__module__)"
MODEL = """
from transformers import AutoModelForSeq2SeqLM, AutoModel, AutoConfig
import torch
config = AutoConfig.for_model('mlnmt-multi-level-supervision', vocab_size=9, d_model=8, auxiliary_layers=[1])
with torch.device("meta"):
    print(type(AutoModelForSeq2SeqLM.from_config(config)).__module__, type(AutoModel.from_config(config)).__name__)
"""
OF_A_CONFIG = """
import torch
from transformers import AutoModelForSeq2SeqLM
with torch.device("meta"):
    print(type(AutoModelForSeq2SeqLM.from_config(config)).__name__)
"""
ORDERS = {
    "the package first": f"import hf_mlnmt\n{CONFIG}\n{MODEL}",
    "its configs first": f"from transformers import AutoConfig\nimport hf_mlnmt\n{CONFIG}\n{MODEL}",
    "its models first": f"from transformers import AutoModelForSeq2SeqLM, Trainer\nimport hf_mlnmt\n{MODEL}",
    "half of it first": f"import hf_mlnmt\nfrom transformers import PreTrainedModel, GenerationMixin\n{MODEL}",
    "generation next": f"import hf_mlnmt\nimport transformers.generation.utils\n{MODEL}",
    "a class of ours": "from hf_mlnmt.modeling import AggregationConfig\nconfig = AggregationConfig()" + OF_A_CONFIG,
    "a class of a file": (
        "from hf_mlnmt.modeling.combinations import DualContextAggregationConfig as C\nconfig = C()" + OF_A_CONFIG
    ),
    "config_for": "import hf_mlnmt\nconfig = hf_mlnmt.config_for('m-10', 'tiny')" + OF_A_CONFIG,
}


def run(code: str) -> str:
    done = fresh.python("-c", code, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("order", ORDERS)
def test_models_are_known_in_every_order_of_imports(order: str):
    found = run(ORDERS[order])
    if CONFIG in ORDERS[order]:
        assert "hf_mlnmt.modeling.dual_context\n" in found
    if MODEL in ORDERS[order]:
        assert "hf_mlnmt.modeling.multi_level_supervision MultiLevelSupervisionModel\n" in found
    if OF_A_CONFIG in ORDERS[order]:
        assert found.endswith("ForConditionalGeneration\n")


def test_importing_the_package_imports_neither_torch_nor_transformers():
    code = "import sys, hf_mlnmt\nhf_mlnmt.list_systems()\nprint([m for m in sys.modules if m in HEAVY])"
    heavy = "HEAVY = ('torch', 'transformers', 'numpy', 'huggingface_hub', 'rich', 'yaml')\n"
    done = subprocess.run([sys.executable, "-c", heavy + code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_asking_for_a_config_of_another_package_imports_no_model_of_ours():
    code = "import hf_mlnmt, sys\nfrom transformers import AutoConfig\nAutoConfig.for_model('marian')\n"
    assert run(code + "print('hf_mlnmt.modeling' in sys.modules)") == "False\n"


def test_another_packages_class_of_the_same_name_is_not_taken_for_ours():
    """Many a model on the Hub calls its config TransformerConfig."""
    code = """
import hf_mlnmt
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig
class TransformerConfig(PreTrainedConfig):
    model_type = "somebody-elses"
hf_mlnmt.TransformerConfig
try:
    AutoModelForSeq2SeqLM.from_config(TransformerConfig())
except ValueError as error:
    print("Unrecognized configuration class" in str(error))
"""
    assert run(code) == "True\n"


def test_modules_keep_their_own_loaders():
    code = "import hf_mlnmt, inspect\nimport hf_mlnmt.modeling as m\n"
    code += "from transformers.models.auto import configuration_auto as c\n"
    code += "print(*(type(x.__loader__).__name__ + type(x.__spec__.loader).__name__ for x in (c, m)))\n"
    code += "print(len(inspect.getsource(c)) > 1000)"
    assert run(code) == "SourceFileLoaderSourceFileLoader SourceFileLoaderSourceFileLoader\nTrue\n"


def test_every_class_can_be_imported_from_the_package_of_models():
    from hf_mlnmt import modeling

    for architecture in architectures():
        for cls in (architecture.config_class, architecture.base_class, *architecture.heads.values()):
            assert cls.__name__.startswith(architecture.prefix)
            assert getattr(modeling, cls.__name__) is cls
    with pytest.raises(ImportError):
        from hf_mlnmt.modeling import NoSuchModel  # noqa: F401
