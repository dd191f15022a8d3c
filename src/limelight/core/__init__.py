"""The meaning of a call: masks, spans, biases, the checked specification of a call, and the reference."""
