"""Models of transformers: their attention, masks, arguments and loading. Only this folder knows transformers' names."""
