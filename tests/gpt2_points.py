"""The points that a GPT-2 has, in the order of the forward: what they were before other families brought more."""

GPT2_POINTS = [
    *("embed", "pos_embed", "resid_pre", "ln1_scale", "ln1_normalized", "q", "k", "v", "attn_scores", "attn_pattern"),
    *("z", "result", "attn_out", "resid_mid", "ln2_scale", "ln2_normalized", "mlp_pre", "mlp_post", "mlp_out"),
    *("resid_post", "ln_final_scale", "ln_final"),
]
