"""vLLM's V2 model runner, the one that GPUs use, on a machine without a GPU: Triton's interpreter runs its kernels.

    with v2_host() as host, host.engine(EngineSpec(folder, method="ngram_gpu", asynchronous=True)) as engine:
        [reply] = engine.run([Ask("abcabc", k=2)]).replies

`shim.py` makes vLLM's CPU build take V2 and Triton; no package is changed. `host.py` is a process that runs one engine
after another, with our scheduler and worker. `observed.py` has eyes on vLLM's runner: what it verified and accepted is
counted there, not by our code. `engine.py` is the client, `weights.py` writes the tiny models.

It shows what V2's Python and Triton code does: order, counts, tokens. It shows nothing about CUDA graphs, streams, time
on a GPU, or GPU attention backends. Speed: 5 to 50 tokens/s, so tests take few steps.
"""
