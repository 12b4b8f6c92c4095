-- Triggers by which SQLite refuses to store anything for a sealed tenant that is not encrypted. They are made when the
-- first tenant is sealed: a file without encryption does not pay for them.

-- is-sealed: whether the tenant of a new row is sealed
EXISTS (SELECT 1 FROM tk_tenants k WHERE k.tenant = new.tenant AND k.sealed <> 0)

-- refuse-plain: make the triggers; they apply to processes that are running, too
CREATE TRIGGER IF NOT EXISTS tk_threads_plain_insert BEFORE INSERT ON tk_threads
WHEN new.sealed IS NULL AND {is-sealed} BEGIN SELECT RAISE(ABORT, 'the tenant is encrypted'); END;
CREATE TRIGGER IF NOT EXISTS tk_threads_plain_update BEFORE UPDATE OF rev ON tk_threads
WHEN new.sealed IS NULL AND {is-sealed} BEGIN SELECT RAISE(ABORT, 'the tenant is encrypted'); END;
CREATE TRIGGER IF NOT EXISTS tk_memories_plain_insert BEFORE INSERT ON tk_memories
WHEN new.sealed IS NULL AND {is-sealed} BEGIN SELECT RAISE(ABORT, 'the tenant is encrypted'); END;
