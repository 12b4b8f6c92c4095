"""Encryption: rows are sealed before a transport stores them, and opened after it has read them.

The engine, the backends and the transports do not know about it. `tenants.TenantTransport` stands between a session and
its transport, and translates each request into one with sealed rows, and each reply back.

    keys.py          the keys that users give: master keys, or the functions of a key management service
    tenant_key.py    the keys of a tenant, which master keys wrap: they wrap data keys and hide indexed values
    data_key.py      AES-256-GCM, and the associated data that binds each row to its place
    thread_rows.py   rows and items of threads, sealed and opened
    threads.py       requests about threads
    memories.py      requests about memories
    translation.py   which function translates which request
"""
