"""Calls an answer. In self-study that happens in the notebook's process, in class in one of its own.

running   an answer under a time limit; its exceptions, told at the learner's own line
ipc       numbers and arrays as bytes between two processes
proxies   what an answer gets in place of an object that stays with the grader
kernels   a Triton kernel, interpreted, whose loads and stores the grader answers
limits    what the process may not do once it runs an answer
rules     what an answer may use in class, read off its source
compile_for_gpu  a script that compiles a Triton kernel
__main__  the process; sandbox is the command line that starts it

In class this folder is all of the course that the process finds. So it imports nothing of the rest.
"""
