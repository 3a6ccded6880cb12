"""Measuring the kernels: time, memory, errors, and what the compiler reports.

timing           the clocks, and the inputs that measurements share
accuracy         the error budget: what counts as a correct answer
records          the recorded measurements in courseware/data: reading, writing, and rows in words
counters         bytes by the GPU's own counters
bounds           how fast a call can be at best, and what binds a measured one
experiments      lesson 10's: standard attention, the ladder, fp32 products
flash1_forward   the FlashAttention-1 forward (keys outermost), to be counted, not to be fast
triton_ladder    lesson 11: the forward kernel's worklog, one idea a rung; ladder_model: what follows from their counts
cuda_ladder      lesson 12's rungs; cuda_timing: its kernels on a GPU
variant_timing   lesson 13's; decode_timing and serving_timing: lesson 14's
hopper_ladder    lesson 15's rungs; hopper_timing: its kernels beside their peers
suite            python -m courseware bench: runs all of these
"""
