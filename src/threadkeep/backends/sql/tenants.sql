-- Statements on tenants and their data keys that all SQL databases share. The first condition is always the tenant.

-- tenant: the row of a tenant
SELECT version, sealed, key, quota FROM tk_tenants WHERE tenant = :tenant;

-- insert-tenant: add the row of a tenant; returns no row if it exists
INSERT INTO tk_tenants (tenant, version, sealed, key, quota) VALUES (:tenant, :version, :sealed, :key, :quota)
ON CONFLICT DO NOTHING RETURNING version;

-- update-tenant: replace the row of a tenant if its version is the expected one; returns no row otherwise
UPDATE tk_tenants SET version = :version, sealed = :sealed, key = :key, quota = :quota
WHERE tenant = :tenant AND version = :expect RETURNING version;

-- delete-tenant: delete the row of a tenant if its version is the expected one; returns no row otherwise
DELETE FROM tk_tenants WHERE tenant = :tenant AND version = :expect RETURNING version;

-- sealed-tenant: returns a row if nothing may be stored for a tenant that is not encrypted
SELECT 1 FROM tk_tenants WHERE tenant = :tenant AND sealed <> 0;

-- next-tenant: the first tenant in a table at or after a name: one lookup in an index
(SELECT n.tenant FROM {it} n WHERE n.tenant >= :start ORDER BY n.tenant LIMIT 1)

-- tenant-after: the first tenant in a table after the last one that was found
(SELECT n.tenant FROM {it} n WHERE n.tenant > found.tenant ORDER BY n.tenant LIMIT 1)

-- list-tenants: the tenants that have a row, a thread or a memory: a lookup for each tenant of a table
WITH RECURSIVE found (source, n, tenant) AS (
    SELECT 1, 1, {next-tenant tk_tenants}
    UNION ALL SELECT 2, 1, {next-tenant tk_threads}
    UNION ALL SELECT 3, 1, {next-tenant tk_memories}
    UNION ALL
    SELECT found.source, found.n + 1,
           CASE found.source WHEN 1 THEN {tenant-after tk_tenants}
                             WHEN 2 THEN {tenant-after tk_threads} ELSE {tenant-after tk_memories} END
    FROM found WHERE found.tenant IS NOT NULL AND found.n < :limit
)
SELECT DISTINCT tenant FROM found WHERE tenant IS NOT NULL ORDER BY tenant LIMIT :limit;

-- data-key: a data key
SELECT key FROM tk_keys WHERE tenant = :tenant AND name = :name;

-- insert-data-key: add a data key; an existing one is left alone
INSERT INTO tk_keys (tenant, name, key) VALUES (:tenant, :name, :key) ON CONFLICT DO NOTHING;

-- replace-data-key: replace a data key if it is the expected one
UPDATE tk_keys SET key = :key WHERE tenant = :tenant AND name = :name AND key = :replaces;

-- list-data-keys: data keys of a tenant by name
SELECT name, key FROM tk_keys WHERE tenant = :tenant AND name >= :start ORDER BY name LIMIT :limit;

-- delete-data-keys: delete data keys
DELETE FROM tk_keys WHERE tenant = :tenant AND name = :name;
