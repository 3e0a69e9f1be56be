"""Imported once by the process that children are forked from, so that none of them has to import or to parse for seconds."""

import gc
import importlib

MODULES = """
    internalize.parity.adamw.train internalize.parity.algorithm1.solve internalize.parity.algorithm1.solve_runs
    internalize.parity.certificates internalize.parity.experiments.sweep
    internalize.parity.experiments.curricula internalize.report.reproduce internalize.report.page
    internalize.parallel.cluster internalize.lm.training.train
    internalize.lm.evaluation.comparison internalize.lm.evaluation.evaluate internalize.lm.probe.probed_models
    internalize.lm.probe.probe polars rich.console rich.table typeguard matplotlib.backends.backend_svg
    matplotlib.backends.backend_pdf transformers.trainer transformers.models.gpt2.modeling_gpt2
    transformers.conversion_mapping tests.faults.small_commands torch._dynamo
"""  # AdamW imports the last

for name in MODULES.split():
    importlib.import_module(name)

from internalize.commands import cli  # noqa: E402

cli.parse(["train"])  # tyro remembers what it has read of the options
gc.freeze()  # what is here stays; no child looks through it
