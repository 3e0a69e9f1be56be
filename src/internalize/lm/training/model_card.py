"""The model card: README.md in a model's folder, which says what the model is, how good it is, and how to ask it."""

from pathlib import Path

from internalize import __version__
from internalize.lm.options import LmTrainOptions
from internalize.lm.training.models import PromptSpec
from internalize.storage.files import Json


def model_card(options: LmTrainOptions, asking: PromptSpec, result: Json | None = None) -> str:
    """Return the card of a trained model in Markdown, with the header that model hubs read."""
    slots, hides = asking.stage_slots[-1], asking.hidden[-1] > 0
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation", "tags: [internalize, implicit-cot]"]
    is_name = options.pretrained and not Path(options.model).exists()
    lines += [f"base_model: {options.model}"] if is_name else []
    what = "answers without writing its chain of thought" if hides else "writes its chain of thought"
    base = (
        Path(options.model).name if options.model else f"a new GPT-2 (layers={options.layers}, width={options.width})"
    )
    lines += ["---", "", "# A model that " + what, ""]
    lines += [f"Trained by internalize {__version__} on `{Path(asking.data).name}` from {base}.", ""]
    lines += ["| | |", "| --- | --- |", f"| method | {options.method}, removal {options.removal} |"]
    lines += [f"| updates | {options.steps} of {options.batch} examples at most, learning rate {options.lr:g} |"]
    if result:
        exact = f"{result['exact_match']:.3f} (95 % interval {result['exact_match_low']:.3f} to "
        lines += [f"| exact match | {exact}{result['exact_match_high']:.3f}), {result['examples']} held-out examples |"]
        lines += [f"| updates made | {result['steps']} |", f"| seed | {result['seed']} |"]
    lines += ["", "## How to ask it", ""]
    given = (
        f"the question, its end, and {slots} times `{asking.slot_token}`"
        if asking.curriculum.padded
        else "the question"
    )
    lines += [f"Decode greedily. The prompt is {given}. `internalize.json` beside this file has the format.", ""]
    lines += ["```", "internalize lm eval --model FOLDER --data FILE", "```", ""]
    return "\n".join(lines)
