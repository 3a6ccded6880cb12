"""What runs on a CPU in place of a GPU, and sees what no GPU shows.

triton_trace        the parts of `courseware.tracer`: what Triton's interpreter loads and stores
faster_interpreter  Triton's interpreter without the work that it does again and again to no effect
barriers            phases, arrivals and bytes of an mbarrier, for the next two
gluon_emulator      the Hopper kernels, warp group by warp group
sm_simulator        a Hopper multiprocessor, cycle by cycle
cuda_emulator       CUDA C++, thread by thread
"""
