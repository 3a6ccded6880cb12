"""Loading and storing one tile of a [batch, heads, seq, head_dim] tensor: the one way that every kernel does it."""

import triton
import triton.language as tl

from course_lib.kernels.primitives import round_to, upcast_if_interpreted


@triton.jit
def tile_ptrs(ptr, start, stride_row, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Pointers to rows start to start + BLOCK - 1 of a head: [BLOCK, BLOCK_D]. ptr: the first element of its row 0.

    The first row's offset is 64-bit, because tensors may have more than 2^31 elements; offsets inside the tile are
    32-bit, which is cheaper (`launch.MAX_ROW_STRIDE` makes sure that they fit).
    """
    offsets = tl.arange(0, BLOCK)[:, None] * stride_row + tl.arange(0, BLOCK_D)[None, :]
    return ptr + tl.cast(start, tl.int64) * stride_row + offsets


@triton.jit
def load_tile(
    ptr, desc, batch, head, start, n_rows, stride_row,
    MASK_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rows start to start + BLOCK - 1 of one head: [BLOCK, BLOCK_D], ready for `tl.dot`, zeros outside the tensor.

    ptr: the first element of the head's row 0. desc: a descriptor of the whole tensor (`launch.descriptor`), of which
    batch and head name the head; or None, and the tile is loaded by ptr. MASK_ROWS: the tile may end beyond n_rows. A
    descriptor needs no mask, since it knows where the tensor ends.
    """
    if desc is not None:
        tile = desc.load([tl.cast(batch, tl.int32), tl.cast(head, tl.int32), start, 0]).reshape(BLOCK, BLOCK_D)
    else:
        ptrs = tile_ptrs(ptr, start, stride_row, BLOCK, BLOCK_D)
        mask_d = (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]
        if MASK_ROWS:
            mask_rows = (start + tl.arange(0, BLOCK) < n_rows)[:, None]
            tile = tl.load(ptrs, mask=mask_rows & mask_d, other=0.0)
        elif HEAD_DIM == BLOCK_D:
            tile = tl.load(ptrs)
        else:
            tile = tl.load(ptrs, mask=mask_d, other=0.0)
    return upcast_if_interpreted(tile)


@triton.jit
def store_tile(
    ptr, tile, start, n_rows, stride_row,
    MASK_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write an fp32 tile [BLOCK, BLOCK_D], rounded to ptr's dtype, as rows start to start + BLOCK - 1 of one head."""
    ptrs = tile_ptrs(ptr, start, stride_row, BLOCK, BLOCK_D)
    tile = round_to(tile, ptr.dtype.element_ty)
    mask_d = (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]
    if MASK_ROWS:
        mask_rows = (start + tl.arange(0, BLOCK) < n_rows)[:, None]
        tl.store(ptrs, tile, mask=mask_rows & mask_d)
    elif HEAD_DIM == BLOCK_D:
        tl.store(ptrs, tile)
    else:
        tl.store(ptrs, tile, mask=mask_d)
