"""The course in a class, with nbgrader.

assignments  writes the nbgrader course: python -m courseware classroom DIR
cli          marks a notebook: python -m courseware grade NOTEBOOK
marking      marks answers, each in two processes of its own: the grader and the worker
submission   what a student handed in: one reader for all
autograding  what nbgrader uses of it
remote_answer  an answer that runs in the worker; remote_kernels: kernels that do
"""
