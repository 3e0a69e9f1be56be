"""Reads model files that others made, as data only: no code, no pickle, and no model larger than this machine's memory.

transformers trusts what a model's files say. So a config is checked by a schema, its model is first built without
memory, and a loaded model must read and write a token before it is used.
"""

import copy
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

from msgspec import Meta

from internalize.environment import check_memory
from internalize.errors import InputError
from internalize.lm.model_options import MAX_LAYERS
from internalize.lm.training.gguf_files import check_gguf, gguf_file, settled, without_bar
from internalize.lm.training.llama2c_files import config_of, llama2c_file, model_of, tokenizer_of
from internalize.storage.files import Json, check_schema, file_digests, present, read_json, reading

PROMPT_FILE: Final = "internalize.json"
"""File in a model folder with the model's prompt format. transformers does not need it."""
MAX_GROWTH: Final = 100
"""Largest factor by which a tokenizer's replacements may lengthen a text."""
OF_BAD_FILES: Final = (
    *(OSError, ValueError, RuntimeError),  # missing or not JSON; wrong shapes, nested too deeply
    *(TypeError, LookupError, AttributeError, ArithmeticError),  # a value of wrong type, unknown, missing, too large
    ImportError,  # a library that is not installed
)
"""Exceptions that libraries raise on broken files."""
_Layers = Annotated[int, Meta(ge=1, le=MAX_LAYERS)] | None
_Size = Annotated[int, Meta(ge=1)] | list[Any] | None


class _ModelConfig(TypedDict, total=False):
    """The entries of a config.json about a model's size, by the names that architectures use."""

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
    """transformers makes a name for each label, so a large number would need much memory."""


class _OurDigests(TypedDict, total=False):
    weights: dict[str, str] | None


def load_config(name: str) -> Any:
    """Return the config of a model folder, of a config.json, of a GGUF file or of a model on the hub."""
    from transformers import AutoConfig, PretrainedConfig

    path = Path(name)
    _check_path(name)
    if file := llama2c_file(name):
        return config_of(file)
    if file := gguf_file(name):
        check_gguf(file)
        return copy.deepcopy(_gguf_config(file, file.stat().st_mtime_ns))
    file = path / "config.json" if path.is_dir() else path
    with loading(f"model {name!r}"):
        found: Json = read_json(file) if present(file) else PretrainedConfig.get_config_dict(name)[0]
    check_schema(found, _ModelConfig, file)
    return _sound(_load(AutoConfig, name), file)


@lru_cache(maxsize=4)
def _gguf_config(file: Path, _modified: int) -> Any:
    """Return the config of a GGUF file. To read its header takes seconds, and a command needs it several times."""
    from transformers import AutoConfig

    config = _load(AutoConfig, str(file))
    check_schema(config.to_dict(), _ModelConfig, file)
    config._name_or_path = ""  # otherwise peft would look for it on the hub
    vars(config).pop("_model_name_or_path", None)  # what the file calls itself
    return _sound(config, file)


def _sound(config: Any, file: Path) -> Any:
    """Return a config whose numbers agree."""
    words, pad = getattr(config, "vocab_size", None), getattr(config, "pad_token_id", None)
    if isinstance(words, int) and isinstance(pad, int) and pad >= words:
        raise InputError(f"{file}: pad_token_id={pad} must be below vocab_size={words}")
    return config


def _check_path(name: str) -> None:
    """Refuse a path that does not exist. transformers would search for a model of that name on the hub."""
    path = Path(name)
    is_file = path.suffix in (".json", ".gguf")
    of_hub = name[:1] not in "./~" and name.count("/") <= 1 and not name.endswith("/") and not is_file
    if not of_hub and not path.exists():
        what = "file" if is_file else "folder"
        raise InputError(f"model {name!r} cannot be loaded: there is no such {what}")


def load_tokenizer(name: str) -> Any | None:
    """Return the tokenizer of a model folder, of a GGUF file or of a model on the hub.

    None for a config.json or an empty name.
    """
    if not name or (Path(name).suffix == ".json" and not Path(name).is_dir()):
        return None
    from transformers import AutoTokenizer

    _check_path(name)
    if file := llama2c_file(name):
        return tokenizer_of(file)
    if file := gguf_file(name):
        check_gguf(file)
    else:
        _check_growth(name)
    tokenizer = _load(AutoTokenizer, name)
    with loading(f"model {name!r}"):  # a vocabulary without the token for unknown words fails only at such a word
        tokenizer("x internalize")
    return tokenizer


def load_weights(name: str, *, dtype: Any = None, **how: Any) -> Any:
    """Load a model. Refuse missing weights, weights that are not finite, and weights that changed since we wrote them.

    Args:
        name: the model's folder, or its name on the hub.
        dtype: the dtype of the weights in memory; "auto" is that of their file. Default: float32.
        how: further arguments of `from_pretrained`.
    """
    from transformers import AutoModelForCausalLM

    if Path(name).is_dir() and present(ours := Path(name) / PROMPT_FILE):
        digests = read_json(ours, _OurDigests).get("weights")
        files = [path for path in Path(name).glob("*.safetensors") if path.is_file()]
        with reading(Path(name)):
            found = file_digests(files) if digests is not None else None
        if digests != found:
            raise InputError(
                f"the weights in {name} are damaged: their digests differ from those in {ours}; if they were changed "
                "on purpose, remove `weights` from that file"
            )
    config = load_config(name)
    if getattr(config, "quantization_config", None) is None:
        sizes = [weight.numel() for weight in outline(config, f"model {name!r}").parameters()]
        itemsize = getattr(config.dtype, "itemsize", 4) if dtype == "auto" else 4
        check_memory(itemsize * sum(sizes), f"model {name!r}: its {sum(sizes)} weights")
    how |= {} if dtype is None else {"dtype": dtype}  # None would be written into the config
    if gguf_file(name):
        how["config"] = config
        without_bar()
    if file := llama2c_file(name):
        return tried(_finite(model_of(file), name), name)
    with _no_pickles():
        model, info = _load(AutoModelForCausalLM, name, use_safetensors=True, output_loading_info=True, **how)
    if missing := sorted(info["missing_keys"]):
        raise InputError(f"model {name!r} is incomplete: it has no weights for {', '.join(missing[:3])}")
    if gguf_file(name):
        with loading(f"model {name!r}"):
            model = settled(model)
    integers = _non_float_weights(Path(name))
    for weight, values in _finite(model, name).named_parameters():
        if weight in integers and values.is_floating_point():
            raise InputError(
                f"{name}: {weight} has dtype {integers[weight]} in its file; weights must be floating-point numbers"
            )
    return tried(model, name)


def _finite(model: Any, name: str) -> Any:
    """Return a model whose weights are all finite."""
    for weight, values in model.named_parameters():
        if not bool(values.isfinite().all()):
            raise InputError(f"{name}: {weight} has entries that are not finite")
    return model


def outline(config: Any, what: str) -> Any:
    """Return the model of a config with weights that have shapes but no memory."""
    import torch
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM  # transformers leaves its types half open
    with loading(what, "built"), torch.random.fork_rng(devices=[]), torch.device("meta"):
        return build.from_config(config)


def tried(model: Any, name: str) -> Any:
    """Return the model after a test that it can read, train, write and be saved. Matching weights do not ensure it."""
    import torch
    from transformers import GenerationConfig

    was_training = model.training
    with loading(f"model {name!r}"), torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            model.generation_config.validate(strict=True)
        except ValueError:  # the generation config could not be saved with the model
            model.generation_config = GenerationConfig.from_model_config(model.config)
            model.generation_config.validate(strict=True)
        own, greedy = model.generation_config, GenerationConfig(do_sample=False, max_new_tokens=2, pad_token_id=0)
        two = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
        getattr(model.config, "validate", lambda: None)()  # saving does this too, but only after training
        model.train()(input_ids=two, labels=two)
        model.eval().generation_config = greedy
        model.generate(two[:, :1], generation_config=greedy)
        model.generation_config = own
    model.train(was_training)
    return model


@contextmanager
def loading(what: str, done: str = "loaded") -> Generator[None]:
    """Turn errors from bad model files into an `InputError`: `what` cannot be `done`.

    If files are missing, unreachable, incomplete or not a model, transformers raises whatever its parsers raise. The
    exceptions here are those seen when each file of a model was damaged in every way of tests/faults. Any other
    exception is a bug.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    try:
        yield
    except Exception as error:
        seen = (*OF_BAD_FILES, StrictDataclassError, SafetensorError)
        if not isinstance(error, seen) and type(error) is not Exception:  # the tokenizers raise a bare Exception
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{what} cannot be {done}: {reason[:500]}") from error


def _load(kind: Any, name: str, **how: Any) -> Any:
    """Load an object of transformers from a folder, a GGUF file or the hub."""
    local = Path(name).exists()
    if file := gguf_file(name):
        name, how = str(file.parent), {**how, "gguf_file": file.name}
    with loading(f"model {name!r}"):  # without trust_remote_code=False it would ask on the terminal
        return kind.from_pretrained(name, trust_remote_code=False, local_files_only=local, **how)


@contextmanager
def _no_pickles() -> Generator[None]:
    """Refuse files that torch would unpickle: an index or a config may name such a file as a model's weights."""
    import torch

    def refuse(file: object, *_: object, **__: object) -> None:
        raise InputError(f"{file} is not a safetensors file, and weights are read from no other format")

    load, torch.load = torch.load, refuse
    try:
        yield
    finally:
        torch.load = load


def _check_growth(name: str) -> None:
    """Refuse a tokenizer whose replacements could make a text more than `MAX_GROWTH` times as long."""
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
                    f"{file}: its {part} can make a text {growth:.3g} times as long, at most {MAX_GROWTH} is allowed"
                )


def _growth(part: Any) -> float:
    """Return an upper bound on the factor by which a part of a tokenizer lengthens a text."""
    growth, todo = 1.0, [part]
    while todo:
        match todo.pop():
            case {"type": "Replace", "content": str(new), "pattern": {"String": str(old)}}:
                growth *= max(1, len(new.encode()) / max(1, len(old.encode())))
            case {"type": "Replace" | "Prepend", **more}:  # a regular expression may match the empty string everywhere
                growth *= 1 + len(str(more.get("content", more.get("prepend", ""))).encode())
            case {**values}:
                todo += values.values()
            case [*values]:
                todo += values
            case _:
                pass
    return growth


def _non_float_weights(folder: Path) -> dict[str, str]:
    """Return the weights in a model's files that are not floating-point, with their dtypes.

    transformers would silently convert them.
    """
    from safetensors import SafetensorError, safe_open

    found: dict[str, str] = {}
    opened: Any = safe_open
    for path in filter(Path.is_file, folder.glob("*.safetensors")):
        try:
            with opened(path, "pt") as tensors:
                dtypes = {str(name): str(tensors.get_slice(name).get_dtype()) for name in tensors.keys()}  # noqa: SIM118
        except SafetensorError as error:  # a file that the model does not use
            raise InputError(f"{path} is not a complete safetensors file: {error}") from None
        found |= {name: dtype for name, dtype in dtypes.items() if "F" not in dtype}
    return found
