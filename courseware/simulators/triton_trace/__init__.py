"""The parts of `courseware.tracer`: counts of memory accesses, and the process that interprets where kernels compile.

counts               the data: a Trace, its tensors and its violations
recorder             counts inside Triton's interpreter, in this process
remote               sends launches to a process that interprets, and collects what its recorder counted
kernel_source        the source of a function with all that it names, as another process can run it
interpreter_process  that process
"""
