"""transformers, without what it prints."""

import logging


def quiet_transformers() -> None:
    """For our commands: no warnings about defaults and no progress bars of others; our own tell what matters."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in ("accelerate", "datasets", "huggingface_hub", "peft"):
        logging.getLogger(name).setLevel(logging.ERROR)
