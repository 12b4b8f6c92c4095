-- The tables of the search index in SQLite. What is removed from a thread, or from the file, leaves the index by
-- triggers, in the same transaction: they exist only while the index does. A put does not fire any: its epoch stays.

-- has-search: returns a row if there is a search index
SELECT 1 FROM sqlite_schema WHERE name = 'tk_search_tenants';

-- commit-mark: what stays the same on a connection until another one commits
SELECT data_version AS mark FROM pragma_data_version

-- create-search: the tables of the search index
-- What conditions and ranks need is apart from the texts: a frequent word is in thousands of documents, and pages of
-- small rows hold ten times as many of them. A document's terms are its words, and again, with the mark U+E000, those
-- that it has more than once. The index of terms has no positions: phrases are looked for in `words`. With
-- secure-delete, a term that was deleted leaves the pages of the index, too.
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
    checksum INTEGER NOT NULL
) STRICT;
CREATE INDEX tk_search_thread ON tk_search (thread);
CREATE TABLE tk_search_texts (
    doc INTEGER PRIMARY KEY,
    words TEXT NOT NULL,
    repeated TEXT NOT NULL,
    body BLOB NOT NULL,
    terms TEXT GENERATED ALWAYS AS (words || repeated) VIRTUAL
) STRICT;
CREATE VIRTUAL TABLE tk_search_words USING fts5(
    terms, content = 'tk_search_texts', content_rowid = 'doc', detail = none, tokenize = 'ascii'
);
INSERT INTO tk_search_words (tk_search_words, rank) VALUES ('secure-delete', 1);
CREATE VIRTUAL TABLE tk_search_terms USING fts5vocab(tk_search_words, instance);
CREATE TRIGGER tk_search_dropped AFTER DELETE ON tk_threads
BEGIN DELETE FROM tk_search_threads WHERE thread = old.thread; END;
CREATE TRIGGER tk_search_pruned AFTER UPDATE OF epoch ON tk_threads WHEN old.epoch <> new.epoch
BEGIN DELETE FROM tk_search_threads WHERE thread = old.thread; END;
CREATE TRIGGER tk_search_forgotten AFTER DELETE ON tk_search_threads
BEGIN DELETE FROM tk_search WHERE thread = old.thread; END;
CREATE TRIGGER tk_search_removed AFTER DELETE ON tk_search
BEGIN DELETE FROM tk_search_texts WHERE doc = old.doc; END;
CREATE TRIGGER tk_search_text_removed AFTER DELETE ON tk_search_texts
BEGIN
    INSERT INTO tk_search_words (tk_search_words, rowid, terms) VALUES ('delete', old.doc, old.words || old.repeated);
END;
CREATE TRIGGER tk_search_text_added AFTER INSERT ON tk_search_texts
BEGIN INSERT INTO tk_search_words (rowid, terms) VALUES (new.doc, new.words || new.repeated); END;

-- drop-search: delete the search index of all tenants
DROP TRIGGER IF EXISTS tk_search_dropped;
DROP TRIGGER IF EXISTS tk_search_pruned;
DROP TABLE IF EXISTS tk_search_terms;
DROP TABLE IF EXISTS tk_search_words;
DROP TABLE IF EXISTS tk_search_texts;
DROP TABLE IF EXISTS tk_search;
DROP TABLE IF EXISTS tk_search_threads;
DROP TABLE IF EXISTS tk_search_tenants;

-- insert-documents: add a document of a thread
INSERT INTO tk_search (thread, n, time, role, current, length, checksum)
VALUES (:thread, :n, :time, :role, :current, :length, :checksum);
INSERT INTO tk_search_texts (doc, words, repeated, body) VALUES (last_insert_rowid(), :words, :repeated, :body);

-- search-index: documents among which are the first ones in the order of hits; one that is missing is NULL
-- Of documents that have each word once, the rank follows from their length. So all are ranked as if they were such
-- ones; and those that have a word more often are ranked again, by their texts. The first of both lists are among them.
{search-by-length}
UNION ALL
{search-by-count};

-- search-current: the same where the index has all threads as they are
{search-index}

-- search-all: the same where all documents are the tenant's, too
{search-index}

-- search-by-length: the first documents, if they had each word of the query once
-- SQLite leaves out the joins whose columns are not needed.
SELECT f.kind, f.id, {document-columns} FROM (
    SELECT w.rowid AS doc, t.kind, t.id, {score-of-one} AS score
    FROM tk_search_words w
    LEFT JOIN tk_search d ON d.doc = w.rowid
    LEFT JOIN tk_search_texts s ON s.doc = w.rowid
    LEFT JOIN tk_threads t ON t.thread = d.thread
    LEFT JOIN tk_search_threads x ON x.thread = d.thread
    WHERE w.tk_search_words MATCH :match AND (d.doc IS NULL OR ({conditions}))
    ORDER BY d.doc IS NOT NULL, {order-of-hits} LIMIT :limit
) AS f LEFT JOIN tk_search d ON d.doc = f.doc LEFT JOIN tk_search_texts s ON s.doc = f.doc

-- search-by-count: the first of the documents that have a word of the query more than once
SELECT f.kind, f.id, {document-columns} FROM (
    SELECT w.rowid AS doc, t.kind, t.id, {score} AS score
    FROM tk_search_words w
    LEFT JOIN tk_search d ON d.doc = w.rowid
    LEFT JOIN tk_search_texts s ON s.doc = w.rowid
    LEFT JOIN tk_threads t ON t.thread = d.thread
    LEFT JOIN tk_search_threads x ON x.thread = d.thread
    WHERE w.tk_search_words MATCH :match_repeated AND (d.doc IS NULL OR ({conditions}))
    ORDER BY d.doc IS NOT NULL, {order-of-hits} LIMIT :limit
) AS f LEFT JOIN tk_search d ON d.doc = f.doc LEFT JOIN tk_search_texts s ON s.doc = f.doc
-- where-epoch: nothing to compare: triggers remove what has another epoch
TRUE

-- where-threads: documents of these threads: a JSON list of kinds and ids in hexadecimal digits
t.kind || hex(t.id) IN (SELECT value FROM json_each(:threads))

-- indexed-documents: the documents of a thread, with the number and the repeated words of each
SELECT t.kind, t.id, {document-columns}, d.doc, s.repeated
FROM tk_search d LEFT JOIN tk_search_texts s ON s.doc = d.doc LEFT JOIN tk_threads t ON t.thread = d.thread
WHERE d.thread = :thread ORDER BY d.n;

-- lost-documents: how many rows of the index belong to nothing
SELECT 'documents', count(*) FROM tk_search d
WHERE NOT EXISTS (SELECT 1 FROM tk_search_threads x WHERE x.thread = d.thread)
UNION ALL
SELECT 'texts', count(*) FROM tk_search_texts s WHERE NOT EXISTS (SELECT 1 FROM tk_search d WHERE d.doc = s.doc);

-- has-terms: returns a row if all terms lead to a document
SELECT 1 FROM tk_search_words WHERE tk_search_words MATCH :match AND rowid = :doc;

-- search-terms: terms with their documents, and whether these do not have them
SELECT v.term, v.doc, coalesce(instr(s.words || ' ' || s.repeated || ' ', ' ' || v.term || ' '), 0) = 0
FROM (SELECT term, doc FROM tk_search_terms WHERE term >= :term LIMIT :limit OFFSET :skip) AS v
LEFT JOIN tk_search_texts s ON s.doc = v.doc;
