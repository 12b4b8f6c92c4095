-- The tables of the search index in SQLite. What is removed from a thread, or from the file, leaves the index by
-- triggers, in the same transaction: they exist only while the index does. A put does not fire any: its epoch stays.

-- has-search: returns a row if there is a search index
SELECT 1 FROM sqlite_schema WHERE name = 'tk_search_tenants';

-- create-search: the tables of the search index
-- Each column that conditions and ranks need comes before the text, so that long texts are not read for them. Without
-- positions, which phrases would need, the index takes half the space; phrases are looked for in `words`. With
-- secure-delete, a word that was deleted leaves the pages of the index, too.
CREATE TABLE tk_search_tenants (tenant BLOB PRIMARY KEY, format INTEGER NOT NULL) WITHOUT ROWID, STRICT;
CREATE TABLE tk_search_threads (
    thread INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    rev INTEGER NOT NULL,
    tenant BLOB NOT NULL
) STRICT;
CREATE TABLE tk_search (
    doc INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,
    n INTEGER NOT NULL,
    time INTEGER NOT NULL,
    role BLOB,
    current INTEGER NOT NULL,
    length INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    words TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX tk_search_thread ON tk_search (thread);
CREATE VIRTUAL TABLE tk_search_words USING fts5(
    words, content = 'tk_search', content_rowid = 'doc', detail = none, tokenize = 'ascii'
);
INSERT INTO tk_search_words (tk_search_words, rank) VALUES ('secure-delete', 1);
CREATE TRIGGER tk_search_dropped AFTER DELETE ON tk_threads
BEGIN DELETE FROM tk_search_threads WHERE thread = old.thread; END;
CREATE TRIGGER tk_search_pruned AFTER UPDATE OF epoch ON tk_threads WHEN old.epoch <> new.epoch
BEGIN DELETE FROM tk_search_threads WHERE thread = old.thread; END;
CREATE TRIGGER tk_search_forgotten AFTER DELETE ON tk_search_threads
BEGIN DELETE FROM tk_search WHERE thread = old.thread; END;
CREATE TRIGGER tk_search_removed AFTER DELETE ON tk_search
BEGIN INSERT INTO tk_search_words (tk_search_words, rowid, words) VALUES ('delete', old.doc, old.words); END;
CREATE TRIGGER tk_search_added AFTER INSERT ON tk_search
BEGIN INSERT INTO tk_search_words (rowid, words) VALUES (new.doc, new.words); END;

-- drop-search: delete the search index of all tenants
DROP TRIGGER IF EXISTS tk_search_dropped;
DROP TRIGGER IF EXISTS tk_search_pruned;
DROP TABLE IF EXISTS tk_search_words;
DROP TABLE IF EXISTS tk_search;
DROP TABLE IF EXISTS tk_search_threads;
DROP TABLE IF EXISTS tk_search_tenants;

-- insert-documents: add a document of a thread
INSERT INTO tk_search (thread, n, time, role, current, length, checksum, words, body)
VALUES (:thread, :n, :time, :role, :current, :length, :checksum, :words, :body);

-- search-index: the first documents in the order of hits; one that is missing comes first of all, as NULL
SELECT f.kind, f.id, {document-columns} FROM (
    SELECT w.rowid AS doc, t.kind, t.id, {score} AS score
    FROM tk_search_words w
    LEFT JOIN tk_search d ON d.doc = w.rowid
    LEFT JOIN tk_threads t ON t.thread = d.thread
    {joins}
    WHERE w.tk_search_words MATCH :match AND (d.doc IS NULL OR ({conditions}))
    ORDER BY d.doc IS NOT NULL, {order-of-hits} LIMIT :limit
) AS f LEFT JOIN tk_search d ON d.doc = f.doc;

-- where-threads: documents of these threads: a JSON list of kinds and ids in hexadecimal digits
t.kind || hex(t.id) IN (SELECT value FROM json_each(:threads))

-- check-search: returns a row, or fails, if the index of words contradicts the documents
INSERT INTO tk_search_words (tk_search_words, rank) VALUES ('integrity-check', 1);
