"""One module per widget: a pure model, and what draws it, in matplotlib or, where one takes hold of it, in JavaScript.

The model computes nothing of its own: its numbers come from `course_lib`, the simulators or a recorded file. A drawing
takes the model and computes nothing, so that every picture of an explorer is a static image in a notebook, too, where
there is no kernel. What is named draw returns a figure, a `figures.Picture`, unless it takes axes.

    dot_products     lesson 01: two vectors; scores, their scale and their softmax
    float_formats    lesson 02: logits on the number line of each format
    stable_softmax   lesson 03: naive, stable and log-sum-exp, step by step
    attention_memory lesson 04: what standard attention holds in memory and moves through it
    online_softmax   lesson 05: feed a stream block by block
    tile_grid        lesson 06: the tiles of the scores, visited and skipped, in order
    tiled_attention  lesson 06: both loops visit by visit; SRAM and bytes by tensor
    block_sizes      lesson 06: a choice of tile sizes, from the grid of tiles to the programs on a GPU
    forward_kernel   lesson 08: one program of the forward kernel, step by step
    backward_passes  lesson 09: the tiles that each of the backward's three passes visits; bytes by tensor
    programs         lesson 07: which elements one program touches, in one dimension and in two
    roofline         lesson 10: the bound that an account of bytes gives, and the recorded rates
    measured         lesson 10: tables and pictures of the records in data/
    worklog          lesson 11: rungs of the ladder, predicted from their counts and measured; block sizes
    warp             lesson 12: one load of a warp, on the sectors of device memory and on the banks
    mask_painter     lesson 13: a mask that one paints, and what becomes of its tiles
    pages            lesson 14: what a pool's pages hold as requests come and go; split keys
    timeline         lesson 15: copies, products and softmax of a multiprocessor's groups, cycle by cycle
    lesson_map       the table of lessons, and its picture
    overview         lesson 00: the picture at its head

What they share:

    figures          colours, sizes, panels with titles and labels, and how a figure becomes a PNG
    drawing          logarithmic axes, curves, cells, matrices of numbers, stacked bars
    svg_explorer     the shell of the explorers that one takes hold of: NAME.js draws in the browser what the model says
    tooltips         places of a picture that say something when one points at them, and may be chosen by a click
    shell            the shell of all others: rows of controls, picture and text
    loop_steps       bytes up to each visit of a loop
    words            numbers and tables in words and HTML
"""
