"""Short reprs and HTML tables of objects."""

import numpy as np

from ssorl.utils.display import MAX_REPR, MAX_ROWS, MAX_VALUE, describe, html_table, short_repr


def test_a_repr_names_the_class_and_its_facts():
    facts = {"env": "hopper", "steps": 12, "mean": 1 / 3, "obs": np.zeros((3, 2), np.float32)}
    assert short_repr("Data", facts) == "Data(env='hopper', steps=12, mean=0.333333, obs=float32[3, 2])"


def test_a_repr_is_shortened_to_its_limit():
    facts = {f"field_{i}": "x" * 1000 for i in range(50)}
    text = short_repr("Data", facts)
    assert len(text) <= MAX_REPR and text.endswith("...)") and text.startswith("Data(field_0=x")
    assert len(describe("x" * 1000)) == MAX_VALUE


def test_values_are_one_line_and_arrays_are_described():
    assert describe("two\n lines") == "two lines"
    assert describe(np.float32(0.5)) == describe(0.5) == "0.5"
    assert describe(np.arange(3)) == "int64[3]" and describe(None) == "None"


def test_html_escapes_text_and_limits_its_rows():
    page = html_table("A & B", {"<script>": "<img src=x>"})
    assert "<script>" not in page and "<img" not in page
    assert "A &amp; B" in page and "&lt;script&gt;" in page and "&lt;img src=x&gt;" in page
    long = html_table("Data", {str(i): i for i in range(MAX_ROWS + 7)})
    assert long.count("<tr>") == MAX_ROWS + 1 and "7 more" in long
