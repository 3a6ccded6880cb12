"""GPU specifications, each figure with the vendor document it was read from.

Rates are the vendor's peaks at boost clock, an upper bound that kernels seldom reach. Vendors write KB and MB of
on-chip memory, and GB of device memory, for powers of two; GB/s and TFLOP/s are powers of ten.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024**2
GIB = 1024**3

# Registers, threads and blocks per SM, shared memory per SM and per block: one table for every compute capability.
CUDA_GUIDE = 'CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"'

# Allocation granularities of an SM, from cuda_occupancy.h, of which Triton brings a copy: the tests compare the two.
REGISTER_ALLOCATION_UNIT = 256  # registers of a warp are rounded up to a multiple of this
WARP_ALLOCATION_UNIT = 4  # the number of warps whose registers fit is rounded down to a multiple of this


@dataclass(frozen=True)
class GPU:
    """One GPU model.

    shared_bytes_per_block: the most that one thread block can have (opt-in above 48 KB). registers_per_sm: of
    32 bits. hbm_*: the device memory, which is GDDR on the T4 and the RTX 4090. fp16_tensor_tflops: dense, with fp32
    accumulation; from compute capability 8.0 on the same rate holds for bf16, which has no tensor cores before.
    fp32_tflops: without tensor cores. sources: a document and table each, and the fields that it is the source of.
    """

    name: str
    compute_capability: tuple[int, int]
    sms: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    registers_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    l2_bytes: int
    hbm_bytes: int
    hbm_bytes_per_s: float
    fp16_tensor_tflops: float
    fp32_tflops: float
    sources: tuple[str, ...]
    tensor_memory_columns_per_sm: int = 0

    @property
    def ridge_flops_per_byte(self):
        """The roofline's ridge for fp16 tensor cores: at a lower intensity, a kernel is memory-bound."""
        return self.fp16_tensor_tflops * 1e12 / self.hbm_bytes_per_s

    @property
    def reserved_shared_bytes(self):
        """Shared memory of an SM that the system takes for each thread block (CUDA guide, "Shared Memory")."""
        return KIB if self.compute_capability >= (8, 0) else 0

    def resident_blocks(self, *, shared_bytes, registers, num_warps, tensor_memory_columns=0):
        """{resource: how many thread blocks of one kernel it would allow on an SM}. The smallest is the occupancy.

        shared_bytes, tensor_memory_columns: per block. registers: per thread. This is what the CUDA Occupancy
        Calculator computes.
        """
        shared_allocation_unit = 128 if self.compute_capability >= (8, 0) else 256
        shared_bytes = _round_up(shared_bytes, shared_allocation_unit) + self.reserved_shared_bytes
        warp_registers = _round_up(32 * registers, REGISTER_ALLOCATION_UNIT)
        warps = self.registers_per_sm // warp_registers // WARP_ALLOCATION_UNIT * WARP_ALLOCATION_UNIT
        limits = {
            "shared memory": self.shared_bytes_per_sm // shared_bytes if shared_bytes else self.blocks_per_sm,
            "registers": warps // num_warps,
            "threads": self.threads_per_sm // (32 * num_warps),
            "blocks": self.blocks_per_sm,
        }
        if tensor_memory_columns:
            limits["tensor memory"] = self.tensor_memory_columns_per_sm // tensor_memory_columns
        return limits


def _round_up(count, unit):
    return -(-count // unit) * unit


GPUS = {
    "T4": GPU(
        name="Tesla T4",
        compute_capability=(7, 5),
        sms=40,
        shared_bytes_per_sm=64 * KIB,
        shared_bytes_per_block=64 * KIB,
        registers_per_sm=65_536,
        threads_per_sm=1024,
        blocks_per_sm=16,
        l2_bytes=4 * MIB,
        hbm_bytes=16 * GIB,
        hbm_bytes_per_s=320e9,
        fp16_tensor_tflops=65.0,
        fp32_tflops=8.1,
        sources=(
            CUDA_GUIDE,
            "NVIDIA Turing GPU Architecture whitepaper, Table 5, Tesla T4: SMs, L2, memory, bandwidth, "
            "fp16 and fp32 peaks (the T4 datasheet prints 300 GB/s)",
        ),
    ),
    "A100": GPU(
        name="A100 80GB SXM4",
        compute_capability=(8, 0),
        sms=108,
        shared_bytes_per_sm=164 * KIB,
        shared_bytes_per_block=163 * KIB,
        registers_per_sm=65_536,
        threads_per_sm=2048,
        blocks_per_sm=32,
        l2_bytes=40 * MIB,
        hbm_bytes=80 * GIB,
        hbm_bytes_per_s=2039e9,
        fp16_tensor_tflops=312.0,
        fp32_tflops=19.5,
        sources=(
            CUDA_GUIDE,
            "NVIDIA A100 Tensor Core GPU Architecture whitepaper, table of data center GPUs: SMs, L2",
            "NVIDIA A100 Tensor Core GPU datasheet, A100 80GB SXM: memory, bandwidth, fp16 and fp32 peaks",
        ),
    ),
    "RTX 4090": GPU(
        name="GeForce RTX 4090",
        compute_capability=(8, 9),
        sms=128,
        shared_bytes_per_sm=100 * KIB,
        shared_bytes_per_block=99 * KIB,
        registers_per_sm=65_536,
        threads_per_sm=1536,
        blocks_per_sm=24,
        l2_bytes=72 * MIB,
        hbm_bytes=24 * GIB,
        hbm_bytes_per_s=1008e9,
        fp16_tensor_tflops=165.2,
        fp32_tflops=82.6,
        sources=(
            CUDA_GUIDE,
            "NVIDIA Ada GPU Architecture whitepaper, Appendix A, Table 2: SMs, L2, memory, bandwidth, "
            "fp16 (fp32 accumulate) and fp32 peaks",
        ),
    ),
    "H100": GPU(
        name="H100 SXM5",
        compute_capability=(9, 0),
        sms=132,
        shared_bytes_per_sm=228 * KIB,
        shared_bytes_per_block=227 * KIB,
        registers_per_sm=65_536,
        threads_per_sm=2048,
        blocks_per_sm=32,
        l2_bytes=50 * MIB,
        hbm_bytes=80 * GIB,
        hbm_bytes_per_s=3352e9,
        fp16_tensor_tflops=989.4,
        fp32_tflops=66.9,
        sources=(
            CUDA_GUIDE,
            "NVIDIA H100 Tensor Core GPU Architecture whitepaper, table of A100 and H100, SXM5: SMs, L2, "
            "memory, bandwidth, fp16 and fp32 peaks",
        ),
    ),
    "B200": GPU(
        name="B200 (HGX)",
        compute_capability=(10, 0),
        sms=148,
        shared_bytes_per_sm=228 * KIB,
        shared_bytes_per_block=227 * KIB,
        registers_per_sm=65_536,
        threads_per_sm=2048,
        blocks_per_sm=32,
        l2_bytes=132_644_864,
        hbm_bytes=180 * GIB,
        hbm_bytes_per_s=8e12,
        fp16_tensor_tflops=2250.0,
        fp32_tflops=80.0,
        tensor_memory_columns_per_sm=512,
        sources=(
            CUDA_GUIDE,
            "PTX ISA, tcgen05.alloc: tensor memory",
            "CUDA device properties multiProcessorCount and l2CacheSize, as a B200 reports them: SMs, L2",
            "NVIDIA DGX B200 datasheet, an eighth of the system: memory, bandwidth "
            "(bus width and clock that a B200 reports give 7.67 TB/s)",
            "NVIDIA Blackwell Architecture Technical Brief, Table 3, HGX B200: fp16 and fp32 peaks",
        ),
    ),
}
