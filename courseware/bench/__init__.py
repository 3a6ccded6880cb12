"""Measuring the kernels: time, memory, errors, and what the compiler reports.

timing       the clocks, and the inputs that measurements share
accuracy     the error budget: what counts as a correct answer
records      the recorded measurements in data/: reading, writing, and rows in words
experiments  lesson 10's: standard attention, the ladder, fp32 products
counters     bytes by the GPU's own counters
decoding     reading a cache: time, and bytes by the counters
bounds       how fast a call can be at best, and what binds a measured one
bench        python -m courseware bench: runs all of these
ladder       the forward kernel's worklog, one idea at a time
rungs        the time that follows from what the compiler makes of each rung, and what a kernel does for nothing
"""
