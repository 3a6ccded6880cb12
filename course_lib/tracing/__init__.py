"""What kernels ask of memory: the recorder inside Triton's interpreter, and the process that interprets."""
