"""Imported once by the process that children are forked from, so that none of them has to import or to parse for seconds."""

import gc
import importlib

MODULES = """internalize.parity.train internalize.parity.algorithm internalize.parity.kept internalize.parity.certificates
    internalize.sweep internalize.compare internalize.paper internalize.report internalize.full internalize.cluster
    internalize.lm.train internalize.lm.compare internalize.lm.evaluation internalize.lm.kept internalize.lm.probe
    polars rich.console rich.table typeguard matplotlib.backends.backend_svg matplotlib.backends.backend_pdf
    transformers.trainer transformers.models.gpt2.modeling_gpt2 transformers.conversion_mapping
    tests.faults.commands torch._dynamo"""  # AdamW imports the last

for name in MODULES.split():
    importlib.import_module(name)

from internalize import cli  # noqa: E402

cli._parse(["train"])  # tyro remembers what it has read of the options
gc.freeze()  # what is here stays; no child looks through it
