"""Models are asked longer questions than those of their training, on each task whose chains may have any length."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from internalize.errors import InputError
from internalize.lm import Internalization
from internalize.lm.evaluation.evaluate import evaluate, open_subject
from internalize.lm.options import LmTrainOptions
from tests.asking import ask, call, refused
from tests.lm_runs import TINY, untrained

LONGER = {
    "words:group=S3,length=5,fewest=2": ["words:group=S3,length=12"],
    "parity:n=4,k=4,chain=running": ["parity:n=9,k=9,chain=running"],
    "graph:form=symbols,nodes=10,edges=12,hops=3,fewest=2": [
        "graph:form=symbols,nodes=10,edges=8,hops=4",
        "graph:form=symbols,nodes=20,edges=26,hops=3",
    ],
    "graph:nodes=10,edges=12,hops=3,fewest=2": ["graph:nodes=20,edges=26,hops=8"],
    "arithmetic:depth=2": ["arithmetic:depth=4"],
    "arithmetic:depth=3,shape=line,fewest=2": ["arithmetic:depth=9,shape=line"],
    "stories:steps=3,digits=1,fewest=2": ["stories:steps=6,digits=1,fewest=6"],
}
METHODS: dict[str, dict[str, Any]] = {
    "log-icot": {"method": "log-icot"},
    "thin": {"method": "thin"},
    "icot by deletion": {"method": "icot", "removal": "delete"},
}
FIRST, *_ = LONGER
WITH_LEVELS = [FIRST, "arithmetic:depth=2"]


@pytest.mark.parametrize(
    ("trained", "method"),
    [*((task, "thin") for task in LONGER), *((task, "log-icot") for task in WITH_LEVELS), (FIRST, "icot by deletion")],
)
def test_longer_questions_have_room_and_known_words(trained: str, method: str, tmp_path: Path):
    folder = untrained(tmp_path / "model", data=trained, positions=256, test_examples=64, **METHODS[method])
    for longer in LONGER[trained]:
        said: list[str] = []
        subject = open_subject(folder, longer, 6, say=said.append)
        assert len(said) == 1, said
        assert "is not what the model was trained on" in said[0]
        chains, stages = subject.text.chains(subject.examples), subject.stages
        bigger = "hops=3" in longer  # such graphs have more nodes, and walks of the same length
        assert bigger or max(len(chain.units) for chain in chains) > stages.hidden[-1]
        for chain in chains:
            row = stages.at_stage(chain, stages.last)
            assert row.tokens == [*stages.prompt(chain, stages.last).tokens, *chain.answer], (
                "nothing of the chain is left"
            )
        found = evaluate(subject, every_stage=True, chain=True).result
        assert found["examples"] == 6
        assert found["chain_without_room"] == 0
        assert [row["without_room"] for row in found["stages"]] == [0] * stages.count


def test_a_trained_run_is_asked_longer_questions(tmp_path: Path):
    """The commands of docs/lm/data.md, made tiny."""
    size = "--layers 1 --width 16 --heads 2 --batch 8 --steps 12 --stage-steps 4 --advance steps --warmup 2"
    held_out = "--eval-every 4 --eval-examples 8 --test-examples 8"
    out = tmp_path / "run"
    words = f"--data words:group=S3,length=4,fewest=2 --positions 64 --method log-icot {size} {held_out} --out {out}"
    ask(f"lm train {words}")
    assert json.loads((out / "model" / "config.json").read_text())["n_positions"] == 64
    own = ask(f"lm eval --model {out} --examples 8")
    longer = ask(f"lm eval --model {out} --data words:group=S3,length=12 --stages all --chain --examples 8")
    assert longer["examples"] == 8
    assert longer["chain_without_room"] == 0
    # a longer question has as many slots as those of training
    assert longer["answer"]["given_tokens"] - own["answer"]["given_tokens"] == pytest.approx(12 - 3, abs=1)
    assert longer["written"]["generated_tokens"] == 11 + 3  # all the steps; the mark, the answer and the end
    assert "does not fit" not in call(f"lm eval --model {out} --data words:group=S3,length=30 --examples 8").err
    refused(
        f"lm eval --model {out} --data words:group=S3,length=70 --examples 8",
        "none of the examples fits into the model's positions",
        alone=False,
    )


def test_a_new_model_with_rotary_positions(tmp_path: Path):
    config = tmp_path / "rotary.json"
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 16, "max_position_embeddings": 64, **size}))
    folder = untrained(tmp_path / "model", data="words:group=S3,length=4", model=str(config))
    result = evaluate(open_subject(folder, "words:group=S3,length=20", 6), chain=True).result
    assert (result["examples"], result["chain_without_room"]) == (6, 0)


def test_positions_of_a_new_model():
    default, more = (Internalization(replace(TINY, positions=own)) for own in (None, 100))
    assert more.config.n_positions == 100
    assert default.config.n_positions == default.longest + default.spare
    assert Internalization(replace(TINY, positions=default.longest)).config.n_positions == default.longest
    with pytest.raises(InputError, match=f"positions=3, but the longest sequence of the data needs {default.longest}"):
        _ = Internalization(replace(TINY, positions=3)).config
    with pytest.raises(InputError, match="positions=0 must be at least 1"):
        LmTrainOptions(positions=0)
    with pytest.raises(InputError, match=r"positions=9 is for a new GPT-2; some/model has its own number"):
        LmTrainOptions(positions=9, model="some/model")
