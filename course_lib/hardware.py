"""GPU specifications, read from hardware.toml, each figure with the vendor document that it is from.

Rates are the vendor's peaks at boost clock, an upper bound that kernels seldom reach. Vendors write KB and MB of
on-chip memory, and GB of device memory, for powers of two; GB/s and TFLOP/s are powers of ten.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from .integers import python_integers

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
    *_per_cycle_per_sm: what one SM does in a clock cycle (instructions: of one lane each); with l2_bytes_per_cycle, of
    the whole GPU, and l2_latency_cycles they are 0 where `sm_simulator` does not need them. nvlink_*, pcie_*: to other
    GPUs, in each direction, all links together; 0 where no lesson needs them.
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
    tensor_flops_per_cycle_per_sm: int = 0
    exps_per_cycle_per_sm: int = 0
    instructions_per_cycle_per_sm: int = 0
    maxima_per_cycle_per_sm: int = 0
    l2_bytes_per_cycle: int = 0
    l2_latency_cycles: int = 0
    nvlink_bytes_per_s: float = 0.0
    pcie_bytes_per_s: float = 0.0

    @property
    def ridge_flops_per_byte(self):
        """The roofline's ridge for fp16 tensor cores: at a lower intensity, a kernel is memory-bound."""
        return self.fp16_tensor_tflops * 1e12 / self.hbm_bytes_per_s

    @property
    def reserved_shared_bytes(self):
        """Shared memory of an SM that the system takes for each thread block (CUDA guide, "Shared Memory")."""
        return KIB if self.compute_capability >= (8, 0) else 0

    @python_integers
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


def _gpu(fields):
    """The GPU of a table in hardware.toml, where a text such as "64 KiB" is a number of bytes."""
    for name, value in fields.items():
        if isinstance(value, list):
            fields[name] = tuple(value)
        elif found := re.fullmatch(r"(\d+) ([KMG])iB", str(value)):
            fields[name] = int(found[1]) * {"K": KIB, "M": MIB, "G": GIB}[found[2]]
    return GPU(**fields | {"sources": (CUDA_GUIDE, *fields["sources"])})


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
GPUS = {name: _gpu(fields) for name, fields in _TABLES.items()}
