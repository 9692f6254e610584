"""Hidden states that vLLM extracted, a safetensors file for each request, turned into a store.

Each file holds `token_ids` [T] and `hidden_states`. Layer id i is the input of block i, and the number of blocks the
output of the last one before the final norm. The files do not say which layers they hold, nor which text a request was
of: layers are an option, and texts are found by their tokens (`plan`). Rows are gathered and written in `run`. Layers
are in ascending order: vLLM's models collect them in the loop over their blocks.
https://docs.vllm.ai/en/latest/features/speculative_decoding/extract_hidden_states/
"""
