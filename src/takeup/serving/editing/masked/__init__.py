"""Edits of a part of an image: only masked tokens are computed, the others are read from cached activations.

Read in this order:

    editor              prepares a run from an image, a mask and a request; composites the result; one edit end to end
    initial_latents     pixels to latents, noise for the strength, blending outside the mask
    edit_state          a running edit: tokens to compute, its template, measured staleness
    addon               the edits in the step loop: layouts of calls, templates looked up and recorded
    tokens              from a mask to token indices; cached activations as the input of a call; state of the hooks
    hooks               a network computes a subset of its tokens, without a change of its code
    masked_convolutions U-Nets whose convolutions compute masked pixels only (`gather_kernels`: the Triton part)
    transformer_blocks  Flux: rotary attention, AdaLN
    kv_cache            static buffers of one step at fixed addresses, for CUDA graphs
    graph_calls         masked calls for CUDA-graph capture; double buffering
    graph_networks      those calls for U-Nets and for Flux
"""
