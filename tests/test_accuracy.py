"""docs/accuracy.md says what is true: every cell is measured again and held to the bound that is printed."""

from __future__ import annotations

import accuracy
import pytest

CELLS = accuracy.cells()
PRINTED = accuracy.printed()


def test_the_page_has_every_cell_and_no_other():
    said = {cell for cell, text in PRINTED.items() if text != "—"}
    assert said == set(CELLS)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell, how in CELLS.items() if callable(how)], ids=", ".join)
def test_a_cell_holds_its_bound(cell):
    limit = PRINTED[cell].removeprefix("< ")
    number = float(limit.removesuffix("σ"))
    assert accuracy.measured(CELLS[cell]) < number
