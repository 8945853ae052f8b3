"""Columns of Arrow tables as arrays, and arrays as columns."""

from __future__ import annotations

import numpy as np

from ssorl.data.validate import as_floats
from ssorl.utils.errors import DataError


def is_numeric(kind) -> bool:
    """Return whether a column of that type holds numbers, or vectors of numbers."""
    import pyarrow.types as t

    if t.is_list(kind) or t.is_fixed_size_list(kind) or t.is_large_list(kind):
        kind = kind.value_type
    return t.is_floating(kind) or t.is_integer(kind) or t.is_boolean(kind)


def is_sized(column) -> bool:
    """Return whether the size of the vectors in a column is known: not in one of variable size without values."""
    import pyarrow.types as t

    return column.null_count < len(column) or t.is_fixed_size_list(column.type)


def is_empty(kind) -> bool:
    """Return whether a column of that type holds nothing but missing values."""
    import pyarrow.types as t

    return t.is_null(kind)


def is_floating(kind) -> bool:
    """Return whether a column of that type holds floating-point numbers, or vectors of them."""
    import pyarrow.types as t

    return t.is_floating(kind.value_type if t.is_nested(kind) else kind)


def with_values(kind, values):
    """Return the type of a column of vectors, or of numbers, with other numbers."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        return pa.list_(values, kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(values)
    return pa.list_(values) if pa.types.is_list(kind) else values


def is_text(kind) -> bool:
    """Return whether a column of that type holds text."""
    import pyarrow.types as t

    if t.is_dictionary(kind):
        kind = kind.value_type
    return t.is_string(kind) or t.is_large_string(kind)


def index(table, name: str, src: str) -> np.ndarray:
    """Return a column of whole numbers as [rows] int64; of text, a number for each in the order of first appearance.

    Raises:
        DataError: it has empty rows, or numbers that are not whole.
    """
    import pyarrow as pa

    column = table.column(name)
    if not column.null_count and pa.types.is_integer(column.type):
        return column.to_numpy().astype(np.int64)
    if not column.null_count and pa.types.is_floating(column.type):
        values = column.to_numpy()
        if (np.rint(values) == values).all() and (np.abs(values) < 2**53).all():
            return values.astype(np.int64)
    if not column.null_count and is_text(column.type):
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        chunks = encoded.unify_dictionaries() if isinstance(encoded, pa.ChunkedArray) else encoded
        codes = chunks.combine_chunks()
        codes = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
        return codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    raise DataError(f"{src}: column {name} is of type {column.type} or has empty rows; number the rows throughout")


def column(table, name: str, src: str, nullable: bool = False) -> np.ndarray:
    """Return a column as [rows, size]; rows without a value are NaN if `nullable`."""
    import pyarrow as pa

    column = table.column(name).combine_chunks()
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not is_numeric(column.type):
        raise DataError(f"{src}: column {name} is of type {column.type}; numbers or vectors of numbers are due")
    if column.null_count and not nullable:
        raise DataError(f"{src}: column {name} has {column.null_count} empty rows; only actions may be missing")
    if not hasattr(column, "flatten") or isinstance(column, pa.StructArray) or not pa.types.is_nested(column.type):
        return as_floats(column.to_numpy(zero_copy_only=False))[:, None]
    if not column.null_count:
        return _as_matrix(column, name, src)
    known = ~np.asarray(column.is_null())
    if not known.any():
        return np.full((len(column), column.type.list_size), np.nan, np.float32)
    rows = _as_matrix(column.drop_null(), name, src)
    out = np.full((len(column), rows.shape[1]), np.nan, rows.dtype)
    out[known] = rows
    return out


def _as_matrix(column, name: str, src: str) -> np.ndarray:
    """Return a column of vectors, none of them missing, as [rows, size], without a copy where that is possible."""
    import pyarrow as pa

    if not len(column):
        return np.empty((0, getattr(column.type, "list_size", 1)), np.float32)
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
    else:
        widths = np.asarray(column.value_lengths())
        size = int(widths[0])
        if (widths != size).any():
            raise DataError(
                f"{src}: the vectors in column {name} are not all of one size; put other robots in other files"
            )
    return as_floats(column.flatten().to_numpy(zero_copy_only=False)).reshape(-1, size)


def vectors(pa, array: np.ndarray):
    """Return an array [rows, size] as a column of vectors."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])


def feature(pa, values: np.ndarray):
    """Return [rows] or [rows, 1] as a column of numbers, [rows, size] as a column of vectors."""
    if values.ndim == 2 and values.shape[1] > 1:
        return vectors(pa, values)
    return pa.array(np.ascontiguousarray(values.reshape(-1)))
