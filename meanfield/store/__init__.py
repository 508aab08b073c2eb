"""Files: the run file and the table file, HDF5 and valid netCDF-4, and the files of vectors that runs begin from."""

from __future__ import annotations

from .run_file import FORMAT_VERSION, MESSAGE_LENGTH, StoredRun, Variable, Writer, info, read
from .table_file import read_tables, write_tables
from .token_files import read_arrays, read_tokens

__all__ = [
    "FORMAT_VERSION",
    "MESSAGE_LENGTH",
    "StoredRun",
    "Variable",
    "Writer",
    "info",
    "read",
    "read_arrays",
    "read_tables",
    "read_tokens",
    "write_tables",
]
