RIGHT_ANSWERS = {
    "barrier_phases": {"in int64": {"tile // stages % 2": "np.int64(tile // stages % 2)"}},
    "producer_consumer": {"the first waits and the last hand-backs, which nobody needs, are missing": {
        'producer.append(("wait"': 'if tile >= stages: producer.append(("wait"',
        'consumer.append(("arrive"': 'if tile + stages < tiles: consumer.append(("arrive"'}},
    "schedule": {"by np.max": {
                     "max(busiest, round_trip, product + softmax)": "np.max([busiest, round_trip, product + softmax])",
                     'float("inf")': "np.inf"}},
}  # fmt: skip
