"""Makes models from a config, loads them, and writes them so that transformers alone can load them."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from internalize.errors import InputError
from internalize.lm.data.example import Example, Place
from internalize.lm.data.levels import ResolvedSource
from internalize.lm.data.readers import Say
from internalize.lm.options import CurriculumOptions, LmModelOptions, options_from_json
from internalize.lm.stages.chains import TextFormat, Unit
from internalize.lm.stages.removal import TextStages
from internalize.lm.stages.step_end import StepEnd
from internalize.lm.stages.template import ICOT, Template
from internalize.lm.training.adapters import quantization, with_adapters
from internalize.lm.training.gguf_files import gguf_file
from internalize.lm.training.llama2c_files import llama2c_file
from internalize.lm.training.memory import description
from internalize.lm.training.model_files import (
    PROMPT_FILE,
    load_config,
    load_tokenizer,
    load_weights,
    loading,
    tried,
)
from internalize.lm.training.slot_token import with_slot
from internalize.storage.files import (
    check_schema,
    file_digests,
    free_name,
    present,
    read_json,
    reading,
    write_json,
    writing,
)

VERSION: Final = 1
_TABLES: Final = ("hidden", "stage_slots", "count_slots", "targets")
"""The fields that `TextStages` measures."""


def model_config(
    options: LmModelOptions, vocabulary: int, end: int, longest: int, spare: int = 0, place: Place | None = None
) -> Any:
    """Return the config of the model in the options, with ``longest`` positions. A new GPT-2 has ``spare`` more, or the
    number in the options.

    ``place`` is that of the example with the most tokens.
    """
    from transformers import GPT2Config
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    if options.model:
        config = load_config(options.model)
        if config.model_type in MASKED and not (config.is_decoder or config.is_encoder_decoder):
            raise InputError(f"{options.model}: {config.model_type} reads in both directions; it is not a causal model")
        room, words = positions_of(config), getattr(config.get_text_config(), "vocab_size", 0)
        where = f" ({place})" if place else ""
        if room is not None and room < longest:
            raise InputError(
                f"{options.model} has {room} positions, but the longest example{where} needs {longest}; "
                "--max-tokens leaves out longer ones"
            )
        if Path(options.model).suffix == ".json":
            if words < vocabulary:
                raise InputError(f"{options.model}: vocab_size={words}, but the data have {vocabulary} words")
            config._name_or_path = ""  # otherwise peft would look for it on the hub
        return config
    if options.positions is not None and options.positions < longest:
        raise InputError(f"positions={options.positions}, but the longest sequence of the data needs {longest}")
    new = GPT2Config(
        vocab_size=vocabulary,
        n_positions=options.positions or longest + spare,
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.heads,
        initializer_range=options.init_std,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own gelu_new in one fused operation
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=end,
        eos_token_id=end,
    )
    new.loss_type = "ForCausalLM"  # otherwise transformers warns that it has to guess
    return new


def positions_of(config: Any) -> int | None:
    """Return the number of a model's positions, or None if it has no limit."""
    room = getattr(config.get_text_config(), "max_position_embeddings", None)
    return room if isinstance(room, int) and room > 0 else None


def make_model(
    options: LmModelOptions, config: Any, seed: int, *, small: bool = False, new_slot: int | None = None
) -> Any:
    """Load a model, or make a new one from its config with weights drawn by the seed. Add LoRA adapters if asked.

    Weights are in float32 even if the file has a lower precision, in which an optimizer's small updates would be lost.
    With ``small``, which is for weights that are not trained, they keep the precision of the file. ``new_slot`` is a
    slot token that the model lacks.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    if options.pretrained:
        how = {"quantization_config": quantization(options.quantize)} if options.quantize != "none" else {}
        model = load_weights(options.model, dtype="auto" if small else torch.float32, **how)
    else:
        new: Any = AutoModelForCausalLM
        with loading(description(options), "built"):
            model = new.from_config(config, dtype=torch.float32)
        if options.model:
            tried(model, options.model)
    if new_slot is not None:
        model = with_slot(model, new_slot)
    return with_adapters(model, options, new_slot) if options.lora_rank else model


_Counts = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)]


@dataclass(frozen=True)
class PromptSpec:
    """The prompt format of a trained model, as in its `internalize.json`."""

    data: str
    levels: ResolvedSource
    unit: Unit
    slot_token: str
    curriculum: CurriculumOptions
    hidden: _Counts
    stage_slots: _Counts
    count_slots: _Counts
    targets: tuple[int, ...] = ()
    """Older files lack it. Then every stage is a target."""
    template: Template = ICOT
    """Older files lack it."""
    gaps: tuple[_Counts, ...] = ()
    """Only with thinning: see `TextStages`."""
    step_end: StepEnd | None = None
    """Only with thinning."""

    def text(self, tokenizer: Any) -> TextFormat:
        """Return the converter between text and tokens."""
        try:
            return TextFormat(tokenizer, self.unit, self.slot_token, self.template)
        except InputError as error:
            raise InputError(f"{PROMPT_FILE}: {error}") from None

    def stages(self, text: TextFormat) -> TextStages:
        """Return the stages of the model's training."""
        tables = (getattr(self, name) for name in _TABLES)
        return TextStages(self.curriculum, text.slot, *tables, gaps=self.gaps, step_end=self.step_end)

    @classmethod
    def of(cls, data: str, levels: ResolvedSource, text: TextFormat, stages: TextStages) -> "PromptSpec":
        """Return the prompt format of a model in training."""
        return cls(
            data,
            levels,
            text.unit,
            text.slot_token,
            CurriculumOptions(**{each.name: getattr(stages.options, each.name) for each in fields(CurriculumOptions)}),
            *(getattr(stages, name) for name in _TABLES),
            template=text.template,
            gaps=stages.gaps,
            step_end=stages.step_end,
        )

    @classmethod
    def read(cls, folder: Path) -> "PromptSpec":
        """Read the prompt format from a model folder that we wrote."""
        path = folder / PROMPT_FILE
        if not present(path):
            raise InputError(
                f"{folder} has no {PROMPT_FILE}: it was not trained by internalize; give the prompt format by --method"
            )
        found = read_json(path)
        if found.get("version") != VERSION:
            raise InputError(f"{path} has version {found.get('version')!r}; this package reads version {VERSION}")
        curriculum = options_from_json(CurriculumOptions, found.get("curriculum", {}), path)
        asking: PromptSpec = check_schema({**found, "curriculum": asdict(curriculum)}, cls, path)
        if "targets" not in found:
            asking = replace(asking, targets=tuple(range(len(asking.hidden))))
        if len(asking.stage_slots) != len(asking.hidden):
            slots = len(asking.stage_slots)
            raise InputError(f"{path} is damaged: {len(asking.hidden)} stages and {slots} slot counts")
        if len(asking.gaps) != (len(asking.hidden) if curriculum.thins else 0):
            raise InputError(f"{path} is damaged: {len(asking.hidden)} stages and gaps of {len(asking.gaps)}")
        if curriculum.thins and curriculum.padded and asking.step_end is None:
            raise InputError(f"{path} is damaged: it does not say where a step ends")
        last = len(asking.hidden) - 1
        if sorted({0, *asking.targets, last}) != list(asking.targets):
            raise InputError(f"{path} is damaged: targets={asking.targets} do not increase from 0 to {last}")
        return asking

    def as_json(self) -> dict[str, Any]:
        """Return the content of `internalize.json`."""
        return {"version": VERSION, **asdict(self), "curriculum": self.curriculum.as_json()}


def is_disk_message(error: Exception) -> bool:
    """Return whether an error of safetensors or tokenizers passes on a message of the disk, which Rust marks."""
    return not isinstance(error, OSError) and "(os error " in str(error)


def save_model(folder: Path, model: Any, tokenizer: Any, asking: PromptSpec, card: str = "") -> None:
    """Write a model folder, completely or not at all: safetensors, config, tokenizer, prompt format and model card."""
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    beside = folder.with_name(f".{folder.name}.tmp")
    with writing(folder):
        shutil.rmtree(beside, ignore_errors=True)
        try:
            model.save_pretrained(beside)
            tokenizer.save_pretrained(beside)
            if card:
                (beside / "README.md").write_text(card, encoding="utf-8")
        except Exception as error:  # the tokenizers raise a bare Exception
            if not is_disk_message(error):
                raise
            raise InputError(f"cannot write {folder}: {error}") from error
        weights = file_digests(beside.glob("*.safetensors"))
        write_json(beside / PROMPT_FILE, {**asking.as_json(), "weights": weights})
        if any(not (beside / path.name).exists() for path in folder.glob("*")) or _own_card(folder, card):
            folder.rename(free_name(folder))  # the user's own files are kept
        shutil.rmtree(folder, ignore_errors=True)
        beside.replace(folder)


def _own_card(folder: Path, card: str) -> bool:
    """Return whether a folder has a `README.md` that is not this card, but perhaps the user's."""
    found = folder / "README.md"
    return present(found) and found.read_bytes() != card.encode()


def load_model(folder: Path) -> tuple[Any, Any]:
    """Load the model and the tokenizer of a folder. Code and pickles are never loaded."""
    if not folder.is_dir() and not gguf_file(str(folder)) and not llama2c_file(str(folder)):
        raise InputError(f"{folder} is not a model folder")
    with reading(folder):
        return load_weights(str(folder)), load_tokenizer(str(folder))


def check_vocabulary(name: str | Path, model: Any, text: TextFormat, examples: Sequence[Example], say: Say) -> None:
    """Refuse a tokenizer with tokens that the model lacks, and data in which every example has an unknown word."""
    chains = text.chains(examples)
    known = int(model.get_input_embeddings().weight.shape[0])
    highest = max(text.slot, text.pad, text.end, *(max((*chain.prompt, *chain.answer)) for chain in chains))
    if highest >= known:
        raise InputError(
            f"{name}: its tokenizer gives token {highest}, but the model has {known}: they do not belong together"
        )
    unknown = text.tokenizer.unk_token_id
    if unknown is None or unknown == text.end:
        return
    strange = [i for i, chain in enumerate(chains) if unknown in chain.prompt or unknown in chain.answer]
    if strange and len(strange) == len(chains):
        first = examples[0]
        words = f"{first.question} {first.answer}".split()
        word = next((w for w in words if unknown in text.tokenizer(w, add_special_tokens=False)["input_ids"]), words[0])
        raise InputError(
            f"{name} was made for other data: each example has words that its tokenizer does not know, such as {word!r}"
        )
    if strange:
        say(f"{len(strange)} of {len(chains)} examples have words that the model's tokenizer does not know")
