"""Answers that launch a kernel on torch tensors: `courseware.worker.host_calls` has the worker's side of it."""

from courseware.worker.running import CALL_LIMIT_S


def call(answer, kernel, *arguments):
    """What a RemoteAnswer returns for (kernel, *arguments). kernel: has `launch`, and signature. Raises Told."""
    import torch

    from courseware.worker.host_calls import TENSOR, Memories

    memories = Memories()

    def resolved(value):
        if not isinstance(value, list):
            return value
        if value[:1] != [TENSOR]:
            return [resolved(part) for part in value]
        _, number, dtype, *place = value
        if number not in memories.of_number or not isinstance(getattr(torch, dtype, None), torch.dtype):
            return torch.empty(0, device="meta")  # one that no launch has seen
        return memories.tensor(number, dtype, *place)

    def serve(operation, *given):
        if operation != "launch":
            return kernel()
        grid, positional, named, contents = given
        memories.update(contents)
        kernel.launch(grid, *map(resolved, positional), **{name: resolved(value) for name, value in named.items()})
        return memories.contents()

    sent = memories.described(arguments)
    names = list(kernel.arg_names)
    returned = resolved(answer.play("host", names, sent, memories.contents(), CALL_LIMIT_S, serve=serve))
    answer.after = kernel, *arguments
    return tuple(returned) if isinstance(returned, list) else returned
