"""`Internalization`: all that a plain `transformers.Trainer` needs to internalize a chain of thought."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.levels import ResolvedSource, resolve_levels, with_levels
from internalize.lm.data.readers import Say
from internalize.lm.data.source import Source, source_of
from internalize.lm.model_options import plain
from internalize.lm.options import LmTrainOptions
from internalize.lm.stages.chains import TextFormat, word_tokenizer
from internalize.lm.stages.removal import TextStages, unit_of
from internalize.lm.stages.schedule import Schedule
from internalize.lm.stages.template import get_template
from internalize.lm.stages.text_check import check_text
from internalize.lm.training.callback import StageCallback
from internalize.lm.training.collator import Positions, StageCollator, StageRows
from internalize.lm.training.generation import Answers, generate_answers
from internalize.lm.training.model_card import model_card
from internalize.lm.training.models import PROMPT_FILE, PromptSpec, model_config, save_model
from internalize.lm.training.slot_token import slot_token_of, with_slot
from internalize.lm.training.supervised_loss import SupervisedLoss
from internalize.storage.files import Json, write_json

SAMPLE: Final = 20_000
"""Number of training examples that are read before training, to determine the words, the stages and their slots."""
ROOM: Final = 16
"""Number of a new model's positions beyond its longest sequence and the slots."""


def _representative_sample(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Return examples from all parts of a file, which may be sorted, and of a large file the longest ones."""
    every = max(1, -(-len(examples) // SAMPLE))
    long = sorted(examples, key=lambda e: len(e.question) + sum(map(len, e.steps)) + len(e.answer))[-SAMPLE // 10 :]
    return [*examples[::every]], long if every > 1 else []


class Internalization:
    """A curriculum on data, ready for a Trainer: ``dataset``, ``collator`` and ``callback``.

    Args:
        options: data, curriculum, schedule and optimizer, as for `internalize lm train`. The options about the model
            only affect `config` and `loss`.
        tokenizer: the tokenizer of the model to be trained. Default: a new one with one token per word of the data.
        seed: draws the held-out examples, the order of the examples and the replayed ones.
        source: examples in place of ``options.data``, from `open_source` or `of_examples`.
        say: called with each line that the user should see.
    """

    def __init__(
        self,
        options: LmTrainOptions,
        tokenizer: Any = None,
        *,
        seed: int = 0,
        source: Source | None = None,
        say: Say = lambda line: None,
    ) -> None:
        self.seed = seed
        self.source = source or source_of(options, seed, say)
        sample = self.source.training_sample(self.source.size or SAMPLE // 10)
        by_levels = options.curriculum().method == "log-icot"
        # Test examples are included, so that one without levels is found now and not after training.
        examples = [*sample, *self.source.validation, *self.source.test(options.test_examples)]
        self.levels: ResolvedSource
        wanted = "thin" if options.thins else options.levels if by_levels else "steps"
        self.levels, leveled = resolve_levels(examples, wanted)
        template = get_template(options.template, tokenizer)
        self.tokenizer = tokenizer or word_tokenizer(examples, template)
        slot_token, self.new_slot = slot_token_of(options, tokenizer)
        """Whether the slot token is new, so that the model has no embedding of it yet."""
        self.text = TextFormat(self.tokenizer, unit_of(options, self.levels), slot_token, template)
        if (most := options.max_tokens) is not None:
            too_long = f"longer than max_tokens={most}"
            self.source.leave_out(lambda some: [len(c) > most for c in self.text.chains(some)], too_long, say)
            sample = self.source.training_sample(self.source.size or SAMPLE // 10)
            leveled = self.leveled([*sample, *self.source.validation, *self.source.test(options.test_examples)])
        validation = self.leveled(self.source.validation)
        some, long = _representative_sample(leveled[: len(sample)])
        check_text(self.text, [*some, *long], say)
        counted, also = self.text.chains(some), self.text.chains(long)
        self.stages = TextStages.measure(options, counted, self.text.slot, also=also)
        if options.thins and options.padded and self.stages.step_end is None:
            raise InputError(
                "thinning cannot tell where a written step ends: the steps have different numbers of tokens, and no last "
                "token of their own; end each step with the same mark, with --template lines or, for a new model, with a "
                'template file that has "after_step": " ;"'
            )
        measured = [*some, *long, *leveled[len(sample) :]]
        chains = self.text.chains(measured)
        self.longest = max(map(self.stages.longest, chains))
        """The number of positions that the longest sequence needs over all stages, held-out examples included."""
        self.longest_example = measured[max(range(len(chains)), key=lambda i: len(chains[i]))]
        """The example with the most tokens."""
        self.updates_per_epoch = None if self.source.size is None else max(1, -(-self.source.size // options.batch))
        self.options = options = options.with_updates(self.source.size)
        """The options, with the number of updates that follows from epochs."""
        targets = self.stages.targets if options.subdivides else None
        answers = Counter(example.answer for example in validation)
        chance = max(answers.values(), default=0) / max(len(validation), 1)
        self.schedule = Schedule(options, self.stages.count, self.updates_per_epoch, targets, chance)
        self.positions = Positions(options.steps * options.batch)
        self.collator = StageCollator(self._train, self.text, self.stages, self.schedule, options.batch, seed)
        self.rows = StageRows(self.collator, len(self.positions))
        self.callback = StageCallback(options, self.text, self.stages, self.schedule, validation)

    def leveled(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples with their levels, and with their steps sorted by level."""
        return with_levels(examples, self.levels)

    def _train(self, positions: Sequence[int]) -> list[Example]:
        return self.leveled([self.source.train(position) for position in positions])

    def arguments(self, processes: int = 1) -> dict[str, Any]:
        """Return the `transformers.TrainingArguments` that implement the options.

        They fix the order of the batches, which the stages depend on, and the optimizer: learning rate, warm-up, decay,
        clipping and precision. The callback lets a constant learning rate fall to zero at the end (``consolidate``).
        """
        options = self.options
        found = {
            "max_steps": options.steps,
            "per_device_train_batch_size": options.batch // options.accumulate // processes,
            "gradient_accumulation_steps": options.accumulate,
            "train_sampling_strategy": "sequential",
            "remove_unused_columns": False,
            "include_num_input_tokens_seen": "non_padding",
            "learning_rate": options.lr,
            "lr_scheduler_type": "constant_with_warmup" if options.scheduler == "constant" else options.scheduler,
            "warmup_steps": options.warmup,
            "adam_beta2": options.beta2,
            "weight_decay": options.weight_decay,
            "max_grad_norm": options.clip,
            "bf16": options.dtype == "bfloat16",
            "gradient_checkpointing": options.gradient_checkpointing,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},  # the other way fails beside adapters
            "seed": self.seed % 2**32,
        }
        return {name: plain(value) for name, value in found.items()}

    @cached_property
    def dataset(self) -> Any:
        """The rows as a `datasets.Dataset`, which some Trainers insist on. A row is encoded when it is taken."""
        from datasets import Dataset

        def encoded(batch: dict[str, list[int]]) -> dict[str, list[Any]]:
            rows = self.rows.__getitems__(batch["position"])
            return {name: [row[name] for row in rows] for name in self.rows.column_names}

        positions = Dataset.from_dict({"position": range(len(self.rows))})
        positions.set_transform(encoded)
        return positions

    def attach(self, trainer: Any) -> None:
        """Add the callback to a Trainer, so that all loggers of the Trainer see exact match, stage and hidden steps.

        What the Trainer pushes to a hub then has the prompt format, too. With ``callbacks=[work.callback]`` only the
        Trainer's own ``log_history`` sees them, because the Trainer calls its loggers first.
        """
        self.callback.on_push = self._before_upload
        trainer.callback_handler.callbacks.insert(0, self.callback.log)
        if self.callback not in trainer.callback_handler.callbacks:
            trainer.add_callback(self.callback)

    def _before_upload(self, folder: Path) -> None:
        """Write the tokenizer and the prompt format beside the weights that a Trainer uploads."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(folder)
        write_json(folder / PROMPT_FILE, self.asking.as_json())

    def with_slot(self, model: Any) -> Any:
        """Return a pretrained model with an embedding for a new slot token. Other models are returned unchanged."""
        return with_slot(model, self.text.slot) if self.new_slot else model

    def loss(self, model: Any) -> SupervisedLoss | None:
        """Return a Trainer's `compute_loss_func`, which skips the logits that no loss reads, or None for the model's
        own loss, if the model cannot skip any. With ``layer_loss`` it is the loss at every layer.
        """
        loss = SupervisedLoss(model, self.options.layer_loss)
        self.collator.every_layer, self.collator.selects = loss.weight > 0, loss.selects
        return loss if loss.weight or loss.selects else None

    def answers(self, model: Any, examples: Sequence[Example], stage: int | None = None) -> Answers:
        """Return the model's answers at a stage, by default with the whole chain hidden."""
        return generate_answers(
            model, self.text, self.stages, self.leveled(examples), self.stages.last if stage is None else stage
        )

    @property
    def spare(self) -> int:
        """The number of a new model's positions beyond its longest sequence: one per slot, and `ROOM` more."""
        return self.stages.stage_slots[-1] + ROOM

    @property
    def config(self) -> Any:
        """The config of the model in the options, with positions for the longest sequence."""
        place = self.longest_example.place
        return model_config(self.options, len(self.tokenizer), self.text.end, self.longest, self.spare, place)

    @property
    def asking(self) -> PromptSpec:
        """The prompt format of the trained model."""
        return PromptSpec.of(self.source.spec, self.levels, self.text, self.stages)

    def save(self, folder: str | Path, model: Any, result: Json | None = None) -> None:
        """Write a folder that `AutoModelForCausalLM.from_pretrained` loads and `internalize lm eval` can evaluate.

        Its README.md is a model card, which shows the result if there is one.
        """
        card = model_card(self.options, self.asking, result)
        save_model(Path(folder), model, self.tokenizer, self.asking, card)
