"""From a Hugging Face `config.json` to the layers that a model caches."""
