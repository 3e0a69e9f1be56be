"""Models: made from a config or loaded, and written so that transformers alone can load them."""

import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.readers import Say
from internalize.lm.options import CurriculumOptions, LmModelOptions
from internalize.lm.stages.chains import TextFormat
from internalize.lm.stages.removal import TextStages
from internalize.storage.files import file_digests, free_name, present, read_json, reading, write_json, writing

PROMPT_FILE: Final = "internalize.json"
"""Beside a model's own files: how it was trained to be asked. transformers does not need it."""
VERSION: Final = 1
_TABLES: Final = ("hidden", "stage_slots", "count_slots", "targets")
"""What `TextStages` has measured."""
_OF_BAD_FILES: Final = (
    *(OSError, ValueError, RuntimeError),  # not there or not JSON; other shapes, nested too deeply
    *(TypeError, LookupError, AttributeError, ArithmeticError),  # a value of another type, unknown, missing, or 0 heads
    ImportError,  # a tokenizer in a library that is not installed
)


def load_tokenizer(name: str) -> Any | None:
    """The tokenizer of a model folder or hub name; None for a bare config.json, or for no name."""
    if not name or (Path(name).suffix == ".json" and not Path(name).is_dir()):
        return None
    from transformers import AutoTokenizer

    tokenizer = _load(AutoTokenizer, name, local_files_only=Path(name).exists())
    with _loading(name):  # one whose vocabulary lacks the token for unknown words says so when it meets one
        tokenizer("x internalize")
    return tokenizer


def model_config(options: LmModelOptions, vocabulary: int, end: int, longest: int, spare: int = 0) -> Any:
    """The config of the model that is asked for. ``longest`` is how many positions its sequences need; a new one has more."""
    from transformers import AutoConfig, GPT2Config
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    if options.model:
        path = Path(options.model)
        if path.suffix == ".json" and not path.exists():  # transformers would look for it on the hub
            raise InputError(f"model {options.model!r} cannot be loaded: there is no such file")
        if path.suffix == ".json":
            read_json(path)  # refuses numbers that are none, which JSON has not and transformers takes
        config = _load(AutoConfig, options.model, local_files_only=path.exists())
        if config.model_type in MASKED and not (config.is_decoder or config.is_encoder_decoder):
            raise InputError(f"{options.model}: {config.model_type} reads in both directions; it is no causal model")
        if isinstance(getattr(config, "dtype", None), bool | int | float):
            raise InputError(f"{options.model}: dtype={config.dtype!r} in its config is not the name of one")
        room, words = positions_of(config), getattr(config.get_text_config(), "vocab_size", 0)
        if room is not None and room < longest:
            raise InputError(f"{options.model} has {room} positions, and the longest example needs {longest}")
        if path.suffix == ".json":
            if words < vocabulary:
                raise InputError(f"{options.model}: vocab_size={words}, and the data have {vocabulary} words")
            config._name_or_path = ""  # it is no model on the hub: peft would ask there
        return config
    new = GPT2Config(
        vocab_size=vocabulary,
        n_positions=longest + spare,
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
    new.loss_type = "ForCausalLM"  # else transformers warns that it has to guess
    return new


def positions_of(config: Any) -> int | None:
    """How many positions a model has, if there is a limit."""
    room = getattr(config.get_text_config(), "max_position_embeddings", None)
    return room if isinstance(room, int) and room > 0 else None


def make_model(options: LmModelOptions, config: Any, seed: int, *, small: bool = False) -> Any:
    """A loaded model, or a new one from its config with weights drawn by the seed; with LoRA around it if asked.

    Weights are in float32, whatever the file has: an optimizer's small updates are lost in less. With ``small``, for those
    that are not trained, they stay as they are in the file.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    path = Path(options.model)
    torch.manual_seed(seed)
    if options.model and path.suffix != ".json":
        dtype = "auto" if small else torch.float32
        model = _load_weights(options.model, local_files_only=path.exists(), dtype=dtype)
        try:
            model.generation_config.validate(strict=True)
        except ValueError:  # it could not be saved with the model
            model.generation_config = GenerationConfig.from_model_config(model.config)
    else:
        new: Any = AutoModelForCausalLM
        try:
            model = new.from_config(config, dtype=torch.float32)
        except ValueError as error:
            raise InputError(f"{options.model}: {' '.join(str(error).split())[:300]}") from error
    if options.lora_rank:
        from peft import LoraConfig, get_peft_model
        from transformers.pytorch_utils import Conv1D

        model = get_peft_model(
            model,
            LoraConfig(
                r=options.lora_rank,
                lora_alpha=2 * options.lora_rank,
                target_modules="all-linear",
                task_type="CAUSAL_LM",
                fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2's linear layers
            ),
        )
    return model


def _load_weights(name: str | Path, **how: Any) -> Any:
    """A model with all of its weights, each a number; of a folder that we wrote, those that we wrote."""
    from transformers import AutoModelForCausalLM

    if present(ours := Path(name) / PROMPT_FILE):
        digests = read_json(ours).get("weights")
        files = [path for path in Path(name).glob("*.safetensors") if path.is_file()]
        with reading(Path(name)):
            found = file_digests(files) if digests is not None else None
        if digests != found:
            raise InputError(
                f"the weights in {name} are damaged: they are not those that {ours} has the digests of; if they were "
                "trained on, remove `weights` from it"
            )
    model, told = _load(AutoModelForCausalLM, name, use_safetensors=True, output_loading_info=True, **how)
    if missing := sorted(told["missing_keys"]):
        raise InputError(f"model {str(name)!r} is not whole: it has no weights for {', '.join(missing[:3])}")
    integers = _non_float_weights(Path(name))
    for weight, values in model.named_parameters():
        if not bool(values.isfinite().all()):
            raise InputError(f"{name}: {weight} has entries that are not finite")
        if weight in integers and values.is_floating_point():
            raise InputError(
                f"{name}: {weight} has dtype {integers[weight]} in its file; weights are floating-point numbers"
            )
    return model


def _non_float_weights(folder: Path) -> dict[str, str]:
    """What a model's files hold that is no floating-point number, each with its dtype: transformers would convert it in silence."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, str] = {}
    opened: Any = safe_open
    for path in filter(Path.is_file, folder.glob("*.safetensors")):
        try:
            with opened(path, "pt") as tensors:
                dtypes = {str(name): str(tensors.get_slice(name).get_dtype()) for name in tensors.keys()}  # noqa: SIM118
        except SafetensorError as error:  # a file that the model does without
            raise InputError(f"{path} is not a whole safetensors file: {error}") from None
        found |= {name: dtype for name, dtype in dtypes.items() if "F" not in dtype}
    return found


def _load(kind: Any, name: str | Path, **how: Any) -> Any:
    """Something of transformers from a folder or from the hub."""
    with _loading(name):
        return kind.from_pretrained(name, trust_remote_code=False, **how)  # else it asks on the terminal whether to


@contextmanager
def _loading(name: str | Path) -> Generator[None]:
    """What is wrong with a model's files, in our words.

    On what is not there, not reachable, no model or not whole, transformers raises whatever its parsers do. Taken for bad
    files is what was seen when each file of a model was damaged in every way of tests/faults; the rest is a bug, of somebody's.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    try:
        yield
    except Exception as error:
        seen = (*_OF_BAD_FILES, StrictDataclassError, SafetensorError)
        if not isinstance(error, seen) and type(error) is not Exception:  # a bare one is the tokenizers'
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"model {str(name)!r} cannot be loaded: {reason}") from error


@dataclass(frozen=True)
class PromptSpec:
    """How a trained model is asked: what `internalize.json` holds."""

    data: str
    levels: str
    unit: str
    slot_token: str
    curriculum: CurriculumOptions
    hidden: tuple[int, ...]
    stage_slots: tuple[int, ...]
    count_slots: tuple[int, ...]
    targets: tuple[int, ...]

    def text(self, tokenizer: Any) -> TextFormat:
        """The format of prompts and answers."""
        try:
            return TextFormat(tokenizer, "token" if self.unit == "token" else "step", self.slot_token)
        except InputError as error:
            raise InputError(f"{PROMPT_FILE}: {error}") from None

    def stages(self, text: TextFormat) -> TextStages:
        """The stages that the model was trained through."""
        return TextStages(self.curriculum, text.slot, *(getattr(self, name) for name in _TABLES))

    @classmethod
    def of(cls, data: str, levels: str, text: TextFormat, stages: TextStages) -> "PromptSpec":
        """How a model in training is asked."""
        return cls(
            data,
            levels,
            text.unit,
            text.slot_token,
            CurriculumOptions(**{each.name: getattr(stages.options, each.name) for each in fields(CurriculumOptions)}),
            *(getattr(stages, name) for name in _TABLES),
        )

    @classmethod
    def read(cls, folder: Path) -> "PromptSpec":
        """From a model folder that we wrote."""
        path = folder / PROMPT_FILE
        if not present(path):
            raise InputError(
                f"{folder} has no {PROMPT_FILE}: it was not trained by internalize; say how to ask it with --method"
            )
        found = read_json(path)
        if found.get("version") != VERSION:
            raise InputError(f"{path} has version {found.get('version')!r}; this package reads version {VERSION}")
        try:
            found.setdefault("targets", range(len(found["hidden"])))  # of older models: every stage is one
            options = dict(found["curriculum"])
            options["smoothing"] = float(options["smoothing"])
            tables: dict[str, Any] = {name: tuple(map(int, found[name])) for name in _TABLES}
            plain: dict[str, Any] = {name: str(found[name]) for name in ("data", "levels", "unit", "slot_token")}
            asking = cls(curriculum=CurriculumOptions(**options), **plain, **tables)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged: {error}") from error
        if not asking.stage_slots or len(asking.stage_slots) != len(asking.hidden) or not asking.count_slots:
            slots = len(asking.stage_slots)
            raise InputError(f"{path} is damaged: {len(asking.hidden)} stages and {slots} slot counts")
        last = len(asking.hidden) - 1
        if sorted({0, *asking.targets, last}) != list(asking.targets):
            raise InputError(f"{path} is damaged: targets={asking.targets} do not go from 0 up to {last}")
        return asking

    def as_json(self) -> dict[str, Any]:
        """What is written."""
        return {"version": VERSION, **asdict(self), "curriculum": self.curriculum.as_json()}


def disk_said(error: Exception) -> bool:
    """Whether these are Rust's words for what the disk said, as safetensors and tokenizers hand them on."""
    return not isinstance(error, OSError) and "(os error " in str(error)


def save_model(folder: Path, model: Any, tokenizer: Any, asking: PromptSpec) -> None:
    """Write a model folder, whole or not at all: safetensors, config, tokenizer, and how to ask it."""
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    beside = folder.with_name(f".{folder.name}.tmp")
    with writing(folder):
        shutil.rmtree(beside, ignore_errors=True)
        try:
            model.save_pretrained(beside)
            tokenizer.save_pretrained(beside)
        except Exception as error:  # tokenizers raise a bare one
            if not disk_said(error):
                raise
            raise InputError(f"cannot write {folder}: {error}") from error
        weights = file_digests(beside.glob("*.safetensors"))
        write_json(beside / PROMPT_FILE, {**asking.as_json(), "weights": weights})
        if any(not (beside / path.name).exists() for path in folder.glob("*")):  # a user's own file in it
            folder.rename(free_name(folder))
        shutil.rmtree(folder, ignore_errors=True)
        beside.replace(folder)


def load_model(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a folder, in the dtype it was written in. Never code, never pickle."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a model folder")
    with reading(folder):
        return _load_weights(folder, local_files_only=True), load_tokenizer(str(folder))


def check_vocabulary(name: str | Path, model: Any, text: TextFormat, examples: Sequence[Example], say: Say) -> None:
    """Refuse a tokenizer with tokens that the model has not, and data whose words the tokenizer has not."""
    chains = text.chains(examples)
    known = int(model.get_input_embeddings().weight.shape[0])
    highest = max(text.slot, text.pad, text.end, *(max((*chain.prompt, *chain.answer)) for chain in chains))
    if highest >= known:
        raise InputError(
            f"{name}: its tokenizer gives token {highest}, and the model has {known}: they do not go together"
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
            f"{name} was made for other data: its tokenizer does not know {word!r}, nor a word of any example"
        )
    if strange:
        say(f"{len(strange)} of {len(chains)} examples have words that the model's tokenizer does not know")
