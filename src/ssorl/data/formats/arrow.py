"""Columns of Arrow tables as arrays, and arrays as columns."""

from __future__ import annotations

import numpy as np

from ssorl.data.validate import as_floats
from ssorl.utils.errors import DataError


def is_numeric(kind) -> bool:
    """Whether a column of that type holds numbers, or vectors of numbers."""
    import pyarrow.types as t

    if t.is_list(kind) or t.is_fixed_size_list(kind) or t.is_large_list(kind):
        kind = kind.value_type
    return t.is_floating(kind) or t.is_integer(kind) or t.is_boolean(kind)


def is_sized(column) -> bool:
    """Whether a column tells the size of its vectors: one that is empty throughout may not."""
    import pyarrow.types as t

    return column.null_count < len(column) or t.is_fixed_size_list(column.type)


def index(table, name: str, src: str) -> np.ndarray:
    """A column of whole numbers, [rows] int64."""
    import pyarrow as pa

    column = table.column(name)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise DataError(f"{src}: column {name} is of type {column.type} or has empty rows; number the rows throughout")
    return column.to_numpy().astype(np.int64)


def column(table, name: str, src: str, nullable: bool = False) -> np.ndarray:
    """One column as [rows, size]; rows without a value are NaN where that is allowed."""
    import pyarrow as pa

    column = table.column(name).combine_chunks()
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not is_numeric(column.type):
        raise DataError(f"{src}: column {name} is of type {column.type}; numbers or vectors of numbers are due")
    if column.null_count and not nullable:
        raise DataError(f"{src}: column {name} has {column.null_count} empty rows; only actions may be missing")
    if not hasattr(column, "flatten") or isinstance(column, pa.StructArray) or not pa.types.is_nested(column.type):
        return as_floats(column.to_numpy(zero_copy_only=False))[:, None]
    there = ~np.asarray(column.is_null())
    if not there.any():
        return np.full((len(column), column.type.list_size), np.nan, np.float32)
    flat = as_floats(column.drop_null().flatten().to_numpy(zero_copy_only=False))
    widths = np.asarray(column.drop_null().value_lengths())
    size = int(widths[0])
    if (widths != size).any():
        raise DataError(f"{src}: the vectors in column {name} are not all of one size; put other robots in other files")
    out = np.full((len(column), size), np.nan, flat.dtype)
    out[there] = flat.reshape(-1, size)
    return out


def vectors(pa, array: np.ndarray):
    """An array [rows, size] as a column of vectors."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])
