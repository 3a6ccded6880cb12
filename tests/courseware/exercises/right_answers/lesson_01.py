RIGHT_ANSWERS = {
    "dot": {"in float32": {"(a * b).sum()": "np.einsum('i,i', np.float32(a), np.float32(b))"}},
    "cosine_similarity": {"in float32": {"    lengths =": "    a, b = np.float32(a), np.float32(b)\n    lengths =",
                                         "        return 0.0": "        return 0"}},
    "scores": {"lists of scores": {"return Q @ K.T * scale": "return [list(row) for row in Q @ K.T * scale]"},
               "in float32, by einsum": {"Q @ K.T": "np.einsum('id,jd->ij', np.float32(Q), np.float32(K))"}},
    "attention_flops": {"int64": {"4 * n_q": "np.int64(4) * n_q"}},
}  # fmt: skip
