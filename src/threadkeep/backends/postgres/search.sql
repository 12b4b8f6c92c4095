-- The tables of the search index in PostgreSQL. What is deleted leaves the index with its thread, by foreign keys. So
-- the index is not for databases that distribute tables, but nothing else depends on it.

-- has-search: returns a row if there is a search index
SELECT 1 WHERE to_regclass('tk_search_tenants') IS NOT NULL;

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
    words text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (thread, n)
);
CREATE INDEX IF NOT EXISTS tk_search_words ON tk_search
USING gin (array_to_tsvector(string_to_array(btrim(words), '  '))) WITH (fastupdate = off);

-- drop-search: delete the search index of all tenants
DROP TABLE IF EXISTS tk_search, tk_search_threads, tk_search_tenants;

-- insert-documents: add documents
INSERT INTO tk_search (thread, n, time, length, checksum, current, role, words, body)
SELECT * FROM unnest(:thread::bigint[], :n::bigint[], :time::bigint[], :length::bigint[], :checksum::bigint[],
                     :current::bigint[], :role::bytea[], :words::text[], :body::bytea[]);

-- search-index: the first documents in the order of hits
SELECT t.kind, t.id, {document-columns} FROM (
    SELECT d.thread, d.n, t.kind, t.id, d.time, {score} AS score
    FROM tk_search d
    JOIN tk_threads t ON t.thread = d.thread
    LEFT JOIN tk_search_threads x ON x.thread = d.thread
    WHERE array_to_tsvector(string_to_array(btrim(d.words), '  ')) @@ CAST(:match AS tsquery) AND {conditions}
    ORDER BY {order-of-hits} LIMIT :limit
) AS t JOIN tk_search d ON d.thread = t.thread AND d.n = t.n;

-- texts: the table that has the texts of documents
d

-- where-threads: documents of these threads: kinds and ids in hexadecimal digits
t.kind || upper(encode(t.id, 'hex')) = ANY (:threads::text[])
