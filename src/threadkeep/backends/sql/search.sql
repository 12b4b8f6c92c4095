-- Statements on the search index that all SQL databases share. Its tables exist only after it was created, and a
-- storage whose schema is older or newer may have them: nothing else refers to them.

-- search-format: the format of a tenant's index
SELECT format FROM tk_search_tenants WHERE tenant = :tenant;

-- search-formats: the formats of all indexes
SELECT tenant, format FROM tk_search_tenants;

-- add-search-tenant: note that a tenant has an index
INSERT INTO tk_search_tenants (tenant, format) VALUES (:tenant, :format) ON CONFLICT DO NOTHING;

-- drop-search-tenant: delete the index of one tenant of several
DELETE FROM tk_search_threads WHERE tenant = :tenant;
DELETE FROM tk_search_tenants WHERE tenant = :tenant;

-- changed-threads: threads that the index does not have as they are; one row of NULLs if there are none
SELECT m.mark, c.kind, c.id, c.total FROM ({commit-mark}) AS m LEFT JOIN (
    SELECT t.kind, t.id, count(*) OVER () AS total
    FROM tk_threads t LEFT JOIN tk_search_threads x ON x.thread = t.thread
    WHERE t.tenant = :tenant AND (x.thread IS NULL OR x.epoch <> t.epoch OR x.rev <> t.rev)
      AND (t.id > :after_id OR (t.id = :after_id AND t.kind > :after_kind))
    ORDER BY t.id, t.kind LIMIT :limit
) AS c ON TRUE;

-- put-search-thread: note the version of a thread that is indexed, unless it has another epoch; returns its number
INSERT INTO tk_search_threads AS x (thread, tenant, epoch, rev)
SELECT t.thread, t.tenant, t.epoch, CAST(:rev AS {bigint}) FROM tk_threads t WHERE {this-thread} AND t.epoch = :epoch
ON CONFLICT (thread) DO UPDATE SET epoch = excluded.epoch, rev = excluded.rev
RETURNING thread;

-- forget-thread: remove a thread from the index
DELETE FROM tk_search_threads WHERE thread = (SELECT t.thread FROM tk_threads t WHERE {this-thread});

-- delete-documents: delete what the index has of a thread
DELETE FROM tk_search WHERE thread = :thread;

-- indexed-threads: threads of the index, with their versions in it and now
SELECT x.thread, t.kind, t.id, t.tenant, x.epoch, x.rev, t.epoch, t.rev
FROM tk_search_threads x LEFT JOIN tk_threads t ON t.thread = x.thread
WHERE (x.tenant = :tenant OR t.tenant = :tenant) AND x.thread > :after ORDER BY x.thread LIMIT :limit;

-- document-columns: the columns of a document, in the order in which they are read
d.n, d.time, d.role, d.current, d.length, s.words, s.body, d.checksum

-- count-word: how often a document has a word
(octet_length(s.words) - octet_length(replace(s.words, :word{n}, ''))) / :size{n}

-- where-phrase: documents with a phrase
octet_length(s.words) > octet_length(replace(s.words, :phrase{n}, ''))

-- where-role: messages of a role
d.role = :role

-- where-since: documents of a time or later
d.time >= :since

-- where-until: documents before a time
d.time < :until

-- where-current: documents that the latest checkpoint of their namespace has
d.current = 1

-- where-exact: documents of threads that the index has as they are
x.epoch = t.epoch AND x.rev = t.rev

-- where-epoch: documents of threads of which nothing was removed since they were indexed
x.epoch = t.epoch

-- order-of-hits: by rank, newest first among equals
score DESC, d.time DESC, t.id, t.kind, d.n DESC

