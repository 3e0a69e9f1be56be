r"""The memory that training needs, estimated from the config before the model is built.

| part        | bytes                                                                                               |
| ----------- | --------------------------------------------------------------------------------------------------- |
| weights     | 4 per weight; for LoRA in bfloat16, 2 per weight of the model and 4 per weight of the adapters      |
| training    | 12 per trained weight: its gradient and AdamW's two moments                                         |
| activations | 4 (bfloat16: 2) · tokens · (16 · layers · width + 2 · vocabulary), for the tokens of a batch's part |
| examples    | about 1000 per example of a batch, and 24 per token                                                 |

The measured peaks for GPT-2 are between 0.9 and 1.2 times the estimate.
"""

from typing import Any

from internalize.environment import check_memory
from internalize.lm.options import LmModelOptions, LmTrainOptions
from internalize.lm.training.model_files import outline


def check_training_memory(
    options: LmTrainOptions, config: Any, longest: int, *, processes: int = 1, device: str = "cpu"
) -> None:
    """Refuse training that needs more memory than this machine has. For a GPU only the weights count, which are loaded
    here first.

    Args:
        options: the options of the training.
        config: the config of the model.
        longest: number of tokens of the longest sequence.
        processes: number of processes that share a batch.
        device: the device that trains.
    """
    model, text = outline(config, description(options)), config.get_text_config()
    weights = sum(weight.numel() for weight in model.parameters())
    adapters = adapter_entries(model, options.lora_rank)
    bfloat16 = options.dtype == "bfloat16"
    need = (2 if bfloat16 and adapters else 4) * weights + 4 * adapters
    if device == "cpu":
        width, layers = getattr(text, "hidden_size", 0), getattr(text, "num_hidden_layers", 0)
        examples = options.batch // processes
        tokens = longest * (examples // options.accumulate)
        need += 12 * (adapters or weights) + examples * (1000 + 24 * longest)
        need += (2 if bfloat16 else 4) * tokens * (16 * layers * width + 2 * getattr(text, "vocab_size", 0))
    batch = f"batch={options.batch}, accumulate={options.accumulate}"
    check_memory(need, f"{description(options)}, lora_rank={options.lora_rank}, {batch}")


def check_states_memory(model: Any, sequences: int, tokens: int, states: int, what: str) -> None:
    """Refuse to hold ``states`` states of the model for each token of these sequences if they do not fit in memory."""
    width: int = getattr(model.config.get_text_config(), "hidden_size", 0)
    check_memory(model.dtype.itemsize * sequences * tokens * states * width, what)


def description(options: LmModelOptions) -> str:
    """Return a description of the model in the options, for messages."""
    if options.model:
        return f"model {options.model!r}"
    return f"a GPT-2 of layers={options.layers}, width={options.width}"


def adapter_entries(model: Any, rank: int) -> int:
    """Return the number of weights of LoRA adapters of this rank."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head, modules = model.get_output_embeddings(), list[Any](model.modules())
    return rank * sum(sum(m.weight.shape) for m in modules if isinstance(m, nn.Linear | Conv1D) and m is not head)
