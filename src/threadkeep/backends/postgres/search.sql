-- The tables of the search index in PostgreSQL. What is deleted leaves the index with its thread, by foreign keys. So
-- the index is not for databases that distribute tables, but nothing else depends on it.

-- has-search: returns a row if there is a search index
SELECT 1 WHERE to_regclass('tk_search_tenants') IS NOT NULL;

-- commit-mark: what stays the same on a connection until anybody commits; NULL if nothing says that
-- The snapshot names the transactions whose changes are visible: while it is the same, so are they. A standby does not
-- list those in progress, and YugabyteDB does not use snapshots. A pooler may lead to another process or server; a crash
-- may lose commits, whose numbers are then used again, but it ends all processes.
SELECT CASE WHEN NOT pg_is_in_recovery() AND version() NOT LIKE '%-YB-%'
       THEN concat_ws(' ', pg_current_snapshot(), pg_backend_pid(), pg_postmaster_start_time()) END AS mark

-- create-search: the tables of the search index
-- Several processes may do this at once: the first statement lets them wait for each other.
SELECT version FROM tk_schema ORDER BY version FOR UPDATE;
CREATE TABLE IF NOT EXISTS tk_search_tenants (tenant bytea PRIMARY KEY, format bigint NOT NULL);
CREATE TABLE IF NOT EXISTS tk_search_threads (
    thread bigint PRIMARY KEY REFERENCES tk_threads ON DELETE CASCADE,
    epoch bigint NOT NULL,
    rev bigint NOT NULL,
    tenant bytea NOT NULL
);
CREATE TABLE IF NOT EXISTS tk_search (
    thread bigint NOT NULL REFERENCES tk_search_threads ON DELETE CASCADE,
    n bigint NOT NULL,
    time bigint NOT NULL,
    length bigint NOT NULL,
    checksum bigint NOT NULL,
    current bigint NOT NULL,
    role bytea,
    terms tsvector NOT NULL,
    PRIMARY KEY (thread, n)
);
CREATE TABLE IF NOT EXISTS tk_search_texts (
    thread bigint NOT NULL REFERENCES tk_search_threads ON DELETE CASCADE,
    n bigint NOT NULL,
    words text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (thread, n)
);
CREATE INDEX IF NOT EXISTS tk_search_terms ON tk_search USING gin (terms) WITH (gin_pending_list_limit = 512);

-- drop-search: delete the search index of all tenants
DROP TABLE IF EXISTS tk_search_texts, tk_search, tk_search_threads, tk_search_tenants;

-- delete-documents: delete what the index has of a thread
WITH texts AS (DELETE FROM tk_search_texts WHERE thread = :thread)
DELETE FROM tk_search WHERE thread = :thread;

-- insert-documents: add documents; their terms are those of SQLite, see there, as a text with spaces between them
WITH texts AS (
    INSERT INTO tk_search_texts (thread, n, words, body)
    SELECT * FROM unnest(:thread::bigint[], :n::bigint[], :words::text[], :body::bytea[])
)
INSERT INTO tk_search (thread, n, time, length, checksum, current, role, terms)
SELECT w.thread, w.n, w.time, w.length, w.checksum, w.current, w.role,
       array_to_tsvector(array_remove(string_to_array(w.words || w.repeated, ' '), ''))
FROM unnest(:thread::bigint[], :n::bigint[], :time::bigint[], :length::bigint[], :checksum::bigint[],
            :current::bigint[], :role::bytea[], :words::text[], :repeated::text[])
    AS w (thread, n, time, length, checksum, current, role, words, repeated);

-- search-index: documents among which are the first ones in the order of hits, as in SQLite
WITH every AS MATERIALIZED ({matching match}), repeated AS MATERIALIZED ({matching match_repeated}),
best AS ({best-of (tk_threads t JOIN tk_search_threads x ON x.thread = t.thread)})
{documents-of-best};

-- search-current: the same where the index has all threads as they are: their versions are not read
WITH every AS MATERIALIZED ({matching match}), repeated AS MATERIALIZED ({matching match_repeated}),
best AS ({best-of tk_threads t})
{documents-of-best};

-- search-all: the same where all documents are the tenant's, too, and no condition is on threads
-- Threads are read only of the first documents, and of those that only the ids of threads place behind them. A document
-- is among them at most twice.
WITH best AS (
    (
        SELECT d.thread, d.n, d.time, {score-of-one} AS score FROM tk_search d {join-of-texts}
        WHERE d.terms @@ CAST(:match AS tsquery) AND {conditions}
        ORDER BY score DESC, d.time DESC FETCH FIRST (:limit) ROWS WITH TIES
    )
    UNION ALL
    (
        SELECT d.thread, d.n, d.time, {score} AS score FROM tk_search d {join-of-texts}
        WHERE d.terms @@ CAST(:match_repeated AS tsquery) AND {conditions}
        ORDER BY score DESC, d.time DESC FETCH FIRST (:limit) ROWS WITH TIES
    )
), best_of_threads AS (
    SELECT d.thread, d.n, t.kind, t.id FROM best d JOIN tk_threads t ON t.thread = d.thread
    ORDER BY {order-of-hits} LIMIT 2 * :limit
)
SELECT b.kind, b.id, {document-columns} FROM best_of_threads b
JOIN tk_search d ON d.thread = b.thread AND d.n = b.n
LEFT JOIN tk_search_texts s ON s.thread = b.thread AND s.n = b.n;

-- matching: the documents that the index of terms finds
-- The planner would read the documents of all threads one by one: it does not know how long a comparison takes.
SELECT d.thread, d.n, d.time, d.length, d.current, d.role FROM tk_search d WHERE d.terms @@ CAST(:{it} AS tsquery)

-- best-of: the first documents, if they had each word once; and those that have a word more than once
(
    SELECT d.thread, d.n, t.kind, t.id, d.time, {score-of-one} AS score
    FROM every d JOIN {it} ON t.thread = d.thread {join-of-texts}
    WHERE {conditions} ORDER BY {order-of-hits} LIMIT :limit
)
UNION ALL
(
    SELECT d.thread, d.n, t.kind, t.id, d.time, {score} AS score
    FROM repeated d JOIN {it} ON t.thread = d.thread {join-of-texts}
    WHERE {conditions} ORDER BY {order-of-hits} LIMIT :limit
)

-- join-of-texts: the texts of a document, which PostgreSQL does not read if no column of them is needed
LEFT JOIN tk_search_texts s ON s.thread = d.thread AND s.n = d.n

-- documents-of-best: these documents
SELECT b.kind, b.id, {document-columns} FROM best b
JOIN tk_search d ON d.thread = b.thread AND d.n = b.n
LEFT JOIN tk_search_texts s ON s.thread = b.thread AND s.n = b.n

-- where-threads: documents of these threads: kinds and ids in hexadecimal digits
t.kind || upper(encode(t.id, 'hex')) = ANY (:threads::text[])

-- indexed-documents: the documents of a thread, with the terms of each; repeated words are not stored apart
SELECT t.kind, t.id, {document-columns}, tsvector_to_array(d.terms), NULL::text
FROM tk_search d LEFT JOIN tk_search_texts s ON s.thread = d.thread AND s.n = d.n
LEFT JOIN tk_threads t ON t.thread = d.thread
WHERE d.thread = :thread ORDER BY d.n;

-- lost-documents: how many rows of the index belong to nothing
SELECT 'documents', count(*) FROM tk_search d
WHERE NOT EXISTS (SELECT 1 FROM tk_search_threads x WHERE x.thread = d.thread)
UNION ALL
SELECT 'texts', count(*) FROM tk_search_texts s
WHERE NOT EXISTS (SELECT 1 FROM tk_search d WHERE d.thread = s.thread AND d.n = s.n);
