"""Measuring the kernels: time, memory, errors, and what the compiler reports.

timing           the clocks, and how contestants are compared
accuracy         the error budget: what counts as a correct answer
records          the recorded measurements in courseware/data: which there are, reading, writing, and rows in words
counters         what the GPU's own counters see
bounds           how fast a call can be at best, and what binds a measured one
ladder           worklogs, one idea a rung: triton_ladder (lesson 11), cuda_ladder (12), hopper_ladder (15)
ladder_model     what follows from the counts of lesson 11's rungs
flash1_forward   the FlashAttention-1 forward (keys outermost), to be counted, not to be fast
experiments      lesson 10's; variant_timing: 13's; decode_timing, serving_timing: 14's; hopper_timing: 15's
suite            python -m courseware bench: runs all of these
"""
