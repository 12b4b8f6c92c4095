"""Tenants: whose threads and memories a request is about, and what holds for them: keys and quota.

`TenantTransport` stands between the sessions of a Keep and its transport. It checks a tenant at first use, and passes
the requests of encrypted tenants through `threadkeep.encryption`.
"""
