"""The definitions of the course, in NumPy: clear first, float64-capable, one file per concept.

Arrays are [seq, head_dim]. Everything else in the course is tested against what stands here.
"""

from .attention import attention
from .backward import attention_backward, softmax_vjp, tiled_backward
from .dot import cosine_similarity, dot, scores
from .entropy import entropy
from .softmax import logsumexp, merge_states, naive_softmax, online_softmax_update, stable_softmax
from .tiled import tiled_attention
