"""Files of tokens: what language models are trained on."""
