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
        "the softmax is late by a tile": (
            {'consumer.append(("softmax", tile))': 'consumer += [("softmax", max(0, tile - 1))] * (tile > 0)', "    return producer": '    consumer += [("mma_wait", 1), ("mma", stage, tile), ("softmax", tile)]\n    return producer'},
            "this producer works with a right consumer; this consumer fails with a right producer",
        ),
        "a wait that lets the newest product go on": (
            {'("mma_wait", 0)': '("mma_wait", 1)', "    return producer": '    consumer.append(("mma_wait", 0))\n    return producer'},
            "before softmax 0, mma_wait 1 lets the newest product be unfinished, which is product 0",
        ),
        "the next tile is waited for first": (
            {'consumer.append(("mma_wait", 0))\n': 'consumer += [("mma_wait", 1)]\n        if tile:\n            consumer += [("arrive", "empty", (tile - 1) % stages), ("softmax", tile - 1)]\n',
             '        consumer.append(("arrive", "empty", stage))\n        consumer.append(("softmax", tile))\n': "",
             "    return producer": '    consumer += [("mma_wait", 0), ("softmax", tiles - 1)]\n    return producer'},
            "the consumer waits for the next tile of stage 0 before it hands back the one that is there",
        ),
        "every tile is multiplied twice": (
            {'consumer.append(("mma_wait", 0))': 'consumer.append(("mma", stage, tile)); consumer.append(("mma_wait", 0))'},
            "the tensor cores are busy for 180 cycles where 90 are enough",
        ),
        "all softmaxes at the end": (
            {'        consumer.append(("softmax", tile))\n': "", "    return producer": '    consumer += [("softmax", tile) for tile in range(tiles)]\n    return producer'},
            "the consumer waits for 6 tiles to arrive before softmax 0, which needs 1",
        ),
        "a round waits for the whole round before": (
            {'producer.append(("wait", "empty", stage, 1 - parity))': 'producer += [("wait", "empty", at, 1 - parity) for at in range(stages)] * (stage == 0)'},
            "the producer waits for empty[1] before it copies tile 3 into stage 0",
        ),
    },
    "schedule": {
        "the chain is put end to end": (
            {"return max(busiest, round_trip, product + softmax)": "return copy + latency + product + softmax"},
            "in the simulation, no unit is always busy, so waiting sets the pace",
        ),
        "no ring of one stage works": (
            {"if next_first and stages == 1:": "if stages == 1:"},
            "only next_first comes to a halt, and only with one stage",
        ),
        "a slow copy engine is not seen": (
            {"busiest = max(copy, consumers * product": "busiest = max(consumers * product"},
            "in the simulation, there is never a pause for the copy engine",
        ),
    },
}  # fmt: skip
