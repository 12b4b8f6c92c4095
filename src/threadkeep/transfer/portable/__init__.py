"""The portable file.

    format.py            lines to records and back
    files.py             reading and writing files of lines
    export.py            a Keep into a file
    redact.py            without what people wrote; msgpack.py
    import_portable.py   a file into a Keep; thread_rows.py

May import the rest of `transfer/` except `sources/`.
"""
