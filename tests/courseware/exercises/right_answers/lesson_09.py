import numpy as np

RIGHT_ANSWERS = {
    "softmax_vjp": {"in float32": {"    row_sums =": "    P, dP = np.float32(P), np.float32(dP)\n    row_sums ="}},
    "attention_backward": {
        "float32": {"S = Q @ K": "Q, K, V, dO = (np.float32(x) for x in (Q, K, V, dO))\n    S = Q @ K"}},
    "delta": {
        "einsum": lambda O, dO: np.einsum("id,id->i", O.astype(np.float64), dO.astype(np.float64)),
        "row by row": lambda O, dO: np.array([np.float32(o) @ np.float32(do) for o, do in zip(O, dO, strict=True)])},
    "tiled_backward": {
        "base 2, sums bound anew, tiles of keys freed by hand": {
            "np.exp(s": "np.exp2(np.float32(np.log2(np.e)) * (s",
            "0.0, lse_i)[:, None])": "0.0, lse_i)[:, None]))",
            "dv += p.T @ do": "dv = dv + p.T @ do",
            "        del k, v, dk, dv": "        for tile in (k, v, dk, dv):\n            machine.free(tile)"}},
    "dkdv_tile": {
        "results in the inputs' dtype": {"dk * scale, m": "(dk * scale).to(k.dtype), m", "dv, m": "dv.to(v.dtype), m"},
        "the first query tile is not rounded, and reads less": {" // BLOCK_M * BLOCK_M\n": "\n"}},
    "attention_function": {
        "delta without a launch": {"delta = kernels.launch_delta(o, do)": "delta = (do * o).sum(dim=-1)"}},
}  # fmt: skip
