"""Lesson 15: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

WRONG_ANSWERS = {
    "barrier_phases": {
        "rounds per query tile": (
            {"tile // stages % 2": "(query_tile * -(-key_tiles // stages) + key_tile // stages) % 2"},
            "before this tile, 7 went through the ring, 2 of them through its stage, which is 1",
        ),
    },
    "producer_consumer": {
        "waits in the first round only": (
            {'producer.append(("wait", "empty", stage, 1 - parity))': 'if tile < stages: producer.append(("wait", "empty", stage, 1 - parity))'},
            "producer is arrival 2 at ready[0] in phase 0, which expects 1",
        ),
    },
    "schedule": {
        "the chain is put end to end": (
            {"return max(busiest, round_trip, product + softmax)": "return copy + latency + product + softmax"},
            "in the simulation, no unit is always busy, so waiting sets the pace",
        ),
    },
}  # fmt: skip
