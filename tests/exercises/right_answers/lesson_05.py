"""Lesson 05: right answers written differently."""

import numpy as np

from course_lib.exercises.lesson_05.merge_states import merge_states

WEIGHTS = "np.exp(m_a - shift), np.exp(m_b - shift)"


def merged_row_by_row(a, b):
    m, l, acc = np.array(a[0]), np.array(a[1]), np.array(a[2])
    for row in np.ndindex(m.shape):
        states = [(x[0][row], x[1][row], x[2][row]) for x in (a, b)]
        (m_1, l_1, acc_1), (m_2, l_2, acc_2) = sorted(states, key=lambda state: state[0])
        factor = np.exp(m_1 - m_2) if m_1 > -np.inf else 0.0
        m[row], l[row], acc[row] = m_2, l_2 + factor * l_1, acc_2 + factor * acc_1
    return m, l, acc


RIGHT_ANSWERS = {
    "merge_states": {
        "b before a": lambda a, b: merge_states(b, a),
        "row by row": merged_row_by_row,
        "powers of two": {
            WEIGHTS: "np.exp2((m_a - shift) * np.float32(1.44269504)), np.exp2((m_b - shift) * np.float32(1.44269504))"
        },
    },
}
