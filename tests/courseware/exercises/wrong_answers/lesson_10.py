"""Lesson 10: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

WRONG_ANSWERS = {
    "arithmetic_intensity": {
        "the limit d / b": ({"flops / (elements * bytes_per_element)": "d / bytes_per_element"}, "the intensity is too large by the factor 1.5"),
        "the limit 2 d / b": ({"flops / (elements * bytes_per_element)": "2 * d / bytes_per_element"}, "the intensity is too large by the factor 3"),
    },
    "roofline_seconds": {
        "min for max": ({"max(arithmetic_s, memory_s, launch_s)": "min(arithmetic_s, memory_s)"}, "the time is too small by the factor 0.5"),
    },
    "explain_point": {
        "<= 1/2": ({"share < 0.5": "share <= 0.5"}, "the verdict should be 'arithmetic', not 'none of these'"),
        "the share upside down": ({"needs[resource] / seconds": "seconds / needs[resource]"}, "the verdict should be 'arithmetic', not 'miscounted'"),
    },
}  # fmt: skip
