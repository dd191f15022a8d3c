"""What a call means: masks, spans, biases, the checked specification of a call, and the reference."""
