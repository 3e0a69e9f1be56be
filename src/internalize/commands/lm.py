"""`internalize lm …`: the subcommands about language models under one name."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from internalize.commands.lm_certify import LmCertify
from internalize.commands.lm_compare import LmCompare
from internalize.commands.lm_data import LmData
from internalize.commands.lm_eval import LmEval
from internalize.commands.lm_plan import LmPlan
from internalize.commands.lm_probe import LmProbe
from internalize.commands.lm_train import LmTrain

Which = (
    Annotated[LmData, tyro.conf.subcommand("data")]
    | Annotated[LmPlan, tyro.conf.subcommand("plan")]
    | Annotated[LmTrain, tyro.conf.subcommand("train")]
    | Annotated[LmEval, tyro.conf.subcommand("eval")]
    | Annotated[LmProbe, tyro.conf.subcommand("probe")]
    | Annotated[LmCertify, tyro.conf.subcommand("certify")]
    | Annotated[LmCompare, tyro.conf.subcommand("compare")]
)


@dataclass(frozen=True)
class Lm:
    """Language models: internalize the chain of thought of any causal model of Hugging Face transformers."""

    command: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Which]]

    def __call__(self) -> int:
        """What the subcommand does."""
        return self.command()
