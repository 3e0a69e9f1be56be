"""Files of models that others made, read as data only: no code, no pickle, and nothing larger than this machine.

transformers believes what a model's files say. So a config is checked by a schema, its model is first built without memory,
and a loaded model has to read and write a token before it is used.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

from msgspec import Meta

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.lm.options import MAX_LAYERS
from internalize.storage.files import Json, check_schema, file_digests, present, read_json, reading

PROMPT_FILE: Final = "internalize.json"
"""Beside a model's own files: how it was trained to be asked. transformers does not need it."""
MAX_GROWTH: Final = 100
"""Times the length of a text that a tokenizer's replacements may make of it."""
OF_BAD_FILES: Final = (
    *(OSError, ValueError, RuntimeError),  # not there or not JSON; other shapes, nested too deeply
    *(
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ),  # a value of another type, unknown, missing, or too large
    ImportError,  # a library that is not installed
)
"""What libraries raise on files that are broken."""
_Layers = Annotated[int, Meta(ge=1, le=MAX_LAYERS)] | None
_Size = Annotated[int, Meta(ge=1)] | list[Any] | None


class _ModelConfig(TypedDict, total=False):
    """What a config.json says of a model's size, by the names that architectures use."""

    model_type: str
    dtype: str | None
    torch_dtype: str | None
    num_hidden_layers: _Layers
    num_layers: _Layers
    n_layer: _Layers
    n_layers: _Layers
    num_attention_heads: _Size
    num_key_value_heads: _Size
    num_heads: _Size
    n_head: _Size
    n_heads: _Size
    head_dim: _Size
    hidden_size: _Size
    d_model: _Size
    n_embd: _Size
    intermediate_size: _Size
    ffn_dim: _Size
    n_inner: _Size
    vocab_size: _Size
    num_labels: Annotated[int, Meta(ge=0, le=10**6)]
    """transformers makes a name for each."""


class _OurDigests(TypedDict, total=False):
    weights: dict[str, str] | None


def load_config(name: str) -> Any:
    """Return the config of a model folder, of a config.json or of a model on the hub."""
    from transformers import AutoConfig, PretrainedConfig

    path = Path(name)
    if path.suffix == ".json" and not path.exists():  # transformers would look for it on the hub
        raise InputError(f"model {name!r} cannot be loaded: there is no such file")
    file = path / "config.json" if path.is_dir() else path
    with loading(f"model {name!r}"):
        found: Json = read_json(file) if present(file) else PretrainedConfig.get_config_dict(name)[0]
    check_schema(found, _ModelConfig, file)
    config = _load(AutoConfig, name)
    words, pad = getattr(config, "vocab_size", None), getattr(config, "pad_token_id", None)
    if isinstance(words, int) and isinstance(pad, int) and pad >= words:
        raise InputError(f"{file}: pad_token_id={pad} is none of vocab_size={words} tokens")
    return config


def load_tokenizer(name: str) -> Any | None:
    """The tokenizer of a model folder or hub name; None for a bare config.json, or for no name."""
    if not name or (Path(name).suffix == ".json" and not Path(name).is_dir()):
        return None
    from transformers import AutoTokenizer

    _check_growth(name)
    tokenizer = _load(AutoTokenizer, name)
    with loading(f"model {name!r}"):  # one whose vocabulary lacks the token for unknown words says so when it meets one
        tokenizer("x internalize")
    return tokenizer


def load_weights(name: str, *, dtype: Any = None) -> Any:
    """A model with all of its weights, each a number; of a folder that we wrote, those that we wrote.

    Args:
        name: of the folder, or on the hub.
        dtype: of the weights in memory; "auto" is that of their file. Default: float32.
    """
    from transformers import AutoModelForCausalLM

    if present(ours := Path(name) / PROMPT_FILE):
        digests = read_json(ours, _OurDigests).get("weights")
        files = [path for path in Path(name).glob("*.safetensors") if path.is_file()]
        with reading(Path(name)):
            found = file_digests(files) if digests is not None else None
        if digests != found:
            raise InputError(
                f"the weights in {name} are damaged: they are not those that {ours} has the digests of; if they were "
                "trained on, remove `weights` from it"
            )
    config = load_config(name)
    if getattr(config, "quantization_config", None) is None:
        sizes = [weight.numel() for weight in outline(config, f"model {name!r}").parameters()]
        itemsize = getattr(config.dtype, "itemsize", 4) if dtype == "auto" else 4
        check_memory(itemsize * sum(sizes), f"model {name!r}: its {sum(sizes)} weights")
    how = {} if dtype is None else {"dtype": dtype}  # a None would go into the config
    with _no_pickles():
        model, told = _load(AutoModelForCausalLM, name, use_safetensors=True, output_loading_info=True, **how)
    if missing := sorted(told["missing_keys"]):
        raise InputError(f"model {name!r} is not whole: it has no weights for {', '.join(missing[:3])}")
    integers = _non_float_weights(Path(name))
    for weight, values in model.named_parameters():
        if not bool(values.isfinite().all()):
            raise InputError(f"{name}: {weight} has entries that are not finite")
        if weight in integers and values.is_floating_point():
            raise InputError(
                f"{name}: {weight} has dtype {integers[weight]} in its file; weights are floating-point numbers"
            )
    return tried(model, name)


def outline(config: Any, what: str) -> Any:
    """Return the model of a config without its weights: they have shapes and no memory."""
    import torch
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM  # transformers leaves its types half open
    with loading(what, "built"), torch.random.fork_rng(devices=[]), torch.device("meta"):
        return build.from_config(config)


def tried(model: Any, name: str) -> Any:
    """Return a model that can read, be trained, write and be saved: a config may fit its weights and nothing else."""
    import torch
    from transformers import GenerationConfig

    was_training = model.training
    with loading(f"model {name!r}"), torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            model.generation_config.validate(strict=True)
        except ValueError:  # it could not be saved with the model
            model.generation_config = GenerationConfig.from_model_config(model.config)
            model.generation_config.validate(strict=True)
        own, greedy = model.generation_config, GenerationConfig(do_sample=False, max_new_tokens=2, pad_token_id=0)
        two = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
        getattr(model.config, "validate", lambda: None)()  # as saving does, after all the work
        model.train()(input_ids=two, labels=two)
        model.eval().generation_config = greedy
        model.generate(two[:, :1], generation_config=greedy)
        model.generation_config = own
    model.train(was_training)
    return model


@contextmanager
def loading(what: str, done: str = "loaded") -> Generator[None]:
    """What is wrong with a model's files, in our words: `what` cannot be `done`.

    On what is not there, not reachable, no model or not whole, transformers raises whatever its parsers do. Taken for bad
    files is what was seen when each file of a model was damaged in every way of tests/faults; the rest is a bug.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    try:
        yield
    except Exception as error:
        seen = (*OF_BAD_FILES, StrictDataclassError, SafetensorError)
        if not isinstance(error, seen) and type(error) is not Exception:  # a bare one is the tokenizers'
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{what} cannot be {done}: {reason[:500]}") from error


def _load(kind: Any, name: str, **how: Any) -> Any:
    """Something of transformers from a folder or from the hub."""
    with loading(f"model {name!r}"):  # without trust_remote_code=False it asks on the terminal whether to
        return kind.from_pretrained(name, trust_remote_code=False, local_files_only=Path(name).exists(), **how)


@contextmanager
def _no_pickles() -> Generator[None]:
    """Refuse what torch would unpickle: an index or a config may name such a file as a model's weights."""
    import torch

    def refuse(file: object, *_: object, **__: object) -> None:
        raise InputError(f"{file} is not safetensors, and no other file of weights is read")

    load, torch.load = torch.load, refuse
    try:
        yield
    finally:
        torch.load = load


def _check_growth(name: str) -> None:
    """Refuse a tokenizer whose replacements, one after another, could make a text much longer than it is."""
    from transformers.utils import hub

    if Path(name).is_dir():
        files = [path for path in Path(name).glob("tokenizer*.json") if present(path)]
    else:
        with loading(f"model {name!r}"):
            found: Any = hub.cached_file(name, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
            files = [Path(found)] if found else []
    for file in files:
        content = read_json(file)
        for part in ("normalizer", "decoder"):
            if (growth := _growth(content.get(part))) > MAX_GROWTH:
                raise InputError(
                    f"{file}: its {part} can make a text {growth:.3g} times as long, and {MAX_GROWTH} times is the most"
                )


def _growth(part: Any) -> float:
    """Return an upper bound on how many times as long a part of a tokenizer makes a text."""
    growth, todo = 1.0, [part]
    while todo:
        match todo.pop():
            case {"type": "Replace", "content": str(new), "pattern": {"String": str(old)}}:
                growth *= max(1, len(new.encode()) / max(1, len(old.encode())))
            case {"type": "Replace" | "Prepend", **more}:  # a regular expression may also match nothing, everywhere
                growth *= 1 + len(str(more.get("content", more.get("prepend", ""))).encode())
            case {**values}:
                todo += values.values()
            case [*values]:
                todo += values
            case _:
                pass
    return growth


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
