"""The text edge: tokenizers, the template compiler and the codec. Host only."""
