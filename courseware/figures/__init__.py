"""The figures of the lessons that stand still: lesson_NN has those of lesson NN.

base         what they share; `draw_matrices`, which several lessons call
lesson_00    the picture at the head of lesson 00; lesson_map: the table of lessons, and its picture

A figure takes numbers or an explorer's model and computes nothing that is not said in its docstring. What is named draw
returns a `base.Picture` of matplotlib or a page of an explorer's panels; both have alternative text.
"""
