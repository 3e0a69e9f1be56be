"""Silences transformers and its companions."""

import logging


def quiet_transformers() -> None:
    """Turn off warnings about defaults and other libraries' progress bars. Our commands report what matters."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in ("accelerate", "datasets", "huggingface_hub", "peft"):
        logging.getLogger(name).setLevel(logging.ERROR)
