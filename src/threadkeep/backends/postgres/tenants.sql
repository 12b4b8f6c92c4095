-- The tables of tenants and of their data keys in PostgreSQL. A database that distributes tables may do so by tenant.

-- tenant-tables: the part of schema-8 that is about tenants
CREATE TABLE tk_tenants (
    tenant bytea PRIMARY KEY,
    version bigint NOT NULL,
    sealed smallint NOT NULL,
    key bytea,
    quota bytea
);
CREATE TABLE tk_keys (
    tenant bytea NOT NULL,
    name bytea NOT NULL,
    key bytea NOT NULL,
    PRIMARY KEY (tenant, name)
);
