r"""What training needs in memory, estimated from the config before there is a model.

| part        | bytes                                                                                               |
| ----------- | --------------------------------------------------------------------------------------------------- |
| weights     | 4 each, or as in their file if they are not trained in mixed precision                              |
| training    | 12 for each trained weight: its gradient and AdamW's two moments                                    |
| activations | 4 (bfloat16: 2) · tokens · (16 · layers · width + 2 · vocabulary), for the tokens of a batch's part |
| examples    | about 1000 and 24 a token, for those of a batch                                                     |

Peaks that were measured for GPT-2 are between 0.9 and 1.2 times the estimate.
"""

from typing import Any

from internalize.environment import check_memory
from internalize.lm.options import LmModelOptions, LmTrainOptions
from internalize.lm.training.model_files import outline


def check_training_memory(
    options: LmTrainOptions, config: Any, longest: int, *, processes: int = 1, device: str = "cpu"
) -> None:
    """Refuse training that this machine has not the memory for. On a GPU only the weights are counted, which pass through here.

    Args:
        options: of the training.
        config: of the model.
        longest: tokens of the longest sequence.
        processes: over which a batch is shared out.
        device: where the arithmetic happens.
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
    """Refuse sequences of so many tokens of which this machine cannot hold so many states of the model at a time."""
    width: int = getattr(model.config.get_text_config(), "hidden_size", 0)
    check_memory(model.dtype.itemsize * sequences * tokens * states * width, what)


def description(options: LmModelOptions) -> str:
    """Return which model is asked for, for messages."""
    if options.model:
        return f"model {options.model!r}"
    return f"a GPT-2 of layers={options.layers}, width={options.width}"


def adapter_entries(model: Any, rank: int) -> int:
    """Return the number of entries of LoRA's adapters of such a rank."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head, modules = model.get_output_embeddings(), list[Any](model.modules())
    return rank * sum(sum(m.weight.shape) for m in modules if isinstance(m, nn.Linear | Conv1D) and m is not head)
