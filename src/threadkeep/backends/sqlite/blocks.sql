-- The SQLite schema, and the statements that differ from the shared ones. The database assigns the thread numbers.
-- Ids are UTF-8 in BLOBs: their byte order is Python's order of strings. Times are milliseconds since 1970.

-- has-tables: returns a row if the file has any table, ours or not
SELECT 1 FROM sqlite_schema LIMIT 1;

-- new-file-settings: settings that only take effect while the file is empty
-- A commit writes whole pages, five of them if it is small. With the usual 4,096 bytes it wrote 20 KB, with 2,048 it
-- writes 10 to 13 KB, and the file is smaller. Below 2,048, pages hold too few rows.
PRAGMA page_size = 2048;
PRAGMA auto_vacuum = INCREMENTAL;

-- journal-mode: write-ahead logging: readers do not wait for the writer
PRAGMA journal_mode = WAL;

-- schema-table: the table that holds the schema version
CREATE TABLE IF NOT EXISTS tk_schema (version INTEGER NOT NULL) STRICT;
DELETE FROM tk_schema;
INSERT INTO tk_schema (version) VALUES (0);

-- versions: the schema version; from 8 on also the oldest versions whose code can read and write these tables
SELECT * FROM tk_schema;

-- set-version: store the schema version after a migration
UPDATE tk_schema SET version = :version;

-- latest-row: the greatest visible checkpoint in a namespace
SELECT {checkpoint-columns} FROM tk_checkpoints c
WHERE c.thread = :thread AND c.ns = :ns AND c.hidden = 0 ORDER BY c.id DESC LIMIT 1;

-- schema-1: the tables of threads, in an empty database
CREATE TABLE tk_threads (
    thread INTEGER PRIMARY KEY,
    tenant BLOB NOT NULL,
    kind TEXT NOT NULL,
    id BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    rev INTEGER NOT NULL,
    nexts BLOB NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    checkpoints INTEGER NOT NULL,
    writes INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    top BLOB,
    run BLOB,
    step INTEGER,
    source TEXT,
    status TEXT NOT NULL,
    labels INTEGER,
    early BLOB,
    early_status TEXT,
    lease BLOB,
    UNIQUE (tenant, kind, id)
) STRICT;
CREATE INDEX tk_threads_updated ON tk_threads (tenant, updated);
CREATE INDEX tk_threads_created ON tk_threads (tenant, created);
-- Items are rowid rows in order of arrival: pages fill up, and long items do not waste overflow pages.
CREATE TABLE tk_items (
    thread INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    n INTEGER NOT NULL,
    payload BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX tk_items_place ON tk_items (thread, lane, n);
CREATE TABLE tk_checkpoints (
    thread INTEGER NOT NULL,
    ns BLOB NOT NULL,
    id BLOB NOT NULL,
    parent BLOB,
    run BLOB,
    step INTEGER,
    source TEXT,
    labels INTEGER NOT NULL,
    time INTEGER NOT NULL,
    hidden INTEGER NOT NULL,
    refs BLOB NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (thread, ns, id)
) WITHOUT ROWID, STRICT;
CREATE TABLE tk_writes (
    thread INTEGER NOT NULL,
    ns BLOB NOT NULL,
    checkpoint BLOB NOT NULL,
    task BLOB NOT NULL,
    path BLOB NOT NULL,
    run BLOB,
    time INTEGER NOT NULL,
    entries TEXT NOT NULL,
    refs BLOB NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (thread, ns, checkpoint, task)
) WITHOUT ROWID, STRICT;
CREATE TABLE tk_tags (
    thread INTEGER NOT NULL,
    labels INTEGER NOT NULL,
    tag BLOB NOT NULL,
    PRIMARY KEY (thread, labels, tag)
) WITHOUT ROWID, STRICT;
CREATE TABLE tk_runs (
    thread INTEGER NOT NULL,
    run BLOB NOT NULL,
    PRIMARY KEY (thread, run)
) WITHOUT ROWID, STRICT;
CREATE INDEX tk_runs_run ON tk_runs (run);

-- schema-2: the tables of memories. Rows are in order of arrival: memories written together share pages
CREATE TABLE tk_memories (
    n INTEGER PRIMARY KEY,
    memory INTEGER NOT NULL UNIQUE,
    part INTEGER NOT NULL,
    tenant BLOB NOT NULL,
    space BLOB NOT NULL,
    key BLOB NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    expires INTEGER,
    ttl REAL,
    value TEXT NOT NULL
) STRICT;
CREATE INDEX tk_memories_space ON tk_memories (tenant, space, updated, key, expires);
CREATE INDEX tk_memories_updated ON tk_memories (tenant, updated);
CREATE INDEX tk_memories_expires ON tk_memories (expires) WHERE expires IS NOT NULL;
CREATE TABLE tk_vectors (
    memory INTEGER NOT NULL,
    field INTEGER NOT NULL,
    part INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    vector BLOB NOT NULL,
    PRIMARY KEY (memory, field)
) STRICT;
CREATE INDEX tk_vectors_seq ON tk_vectors (part, seq);
CREATE TABLE tk_parts (
    part INTEGER PRIMARY KEY,
    tenant BLOB NOT NULL,
    first BLOB NOT NULL,
    seq INTEGER NOT NULL,
    drops INTEGER NOT NULL
) STRICT;
CREATE INDEX tk_parts_tenant ON tk_parts (tenant);
CREATE VIRTUAL TABLE tk_words USING fts5(
    words, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 0'
);

-- schema-8: everything since version 4, which threadkeep 0.1.0 had
-- Views first: SQLite reads all of them again for each change of a table.
DROP VIEW tk_v_activity;
DROP VIEW tk_v_writes;
DROP VIEW tk_v_sizes;
DROP VIEW tk_v_checkpoints;
DROP VIEW tk_v_threads;
ALTER TABLE tk_schema ADD COLUMN readable INTEGER;
ALTER TABLE tk_schema ADD COLUMN writable INTEGER;
UPDATE tk_schema SET readable = 8, writable = 8;
-- Checksums, NULL in rows that were written before.
ALTER TABLE tk_memories ADD COLUMN vectors INTEGER;
ALTER TABLE tk_memories ADD COLUMN checksum INTEGER;
ALTER TABLE tk_memories ADD COLUMN times INTEGER;
ALTER TABLE tk_vectors ADD COLUMN checksum INTEGER;
-- A term is a word with a mark for its count, U+E000 plus the count: see `engine/memories/words.py`. Without positions
-- the index takes a third of the space. The tokenizer `ascii` leaves all other letters alone.
ALTER TABLE tk_memories ADD COLUMN words_check INTEGER;
CREATE VIRTUAL TABLE tk_terms USING fts5vocab(tk_words, instance);
CREATE TABLE tk_old_words AS
SELECT o.doc, group_concat(o.word, ' ') AS words
FROM (SELECT doc, term || char(57344 + min(count(*), 255)) AS word FROM tk_terms GROUP BY doc, term) AS o
GROUP BY o.doc;
DROP TABLE tk_words;
CREATE VIRTUAL TABLE tk_words USING fts5(
    words, content = '', contentless_delete = 1, detail = none, tokenize = 'ascii'
);
INSERT INTO tk_words (rowid, words) SELECT doc, words FROM tk_old_words;
DROP TABLE tk_old_words;
ALTER TABLE tk_threads ADD COLUMN family INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tk_threads ADD COLUMN top_writes INTEGER;
ALTER TABLE tk_threads ADD COLUMN early_writes INTEGER;
ALTER TABLE tk_threads ADD COLUMN bytes_check INTEGER;
ALTER TABLE tk_threads ADD COLUMN checksum INTEGER;
-- An index of threads by `tick`, which is `updated` in units of 2^12 ms, 4 seconds.
-- SQLite writes an index whenever a column of it is set, even to the same value. So a trigger sets `tick`, and only if
-- it changes: of the commits of a step, one writes the index. Items may be compressed with dictionary no. 2.
ALTER TABLE tk_threads ADD COLUMN tick INTEGER NOT NULL DEFAULT 0;
UPDATE tk_threads SET tick = updated >> 12;
DROP INDEX tk_threads_updated;
CREATE INDEX tk_threads_tick ON tk_threads (tenant, tick);
CREATE TRIGGER tk_threads_insert AFTER INSERT ON tk_threads
BEGIN UPDATE tk_threads SET tick = new.updated >> 12 WHERE thread = new.thread; END;
CREATE TRIGGER tk_threads_update AFTER UPDATE OF updated ON tk_threads WHEN old.tick <> new.updated >> 12
BEGIN UPDATE tk_threads SET tick = new.updated >> 12 WHERE thread = new.thread; END;
-- Paths and entries of writes may be shorter; those that look shorter by chance are marked.
UPDATE tk_writes SET path = CAST(x'00' || path AS BLOB) WHERE substr(path, 1, 1) IN (x'00', x'01');
-- Encryption: the key of a thread, of a tenant and of its partitions of memories; which memories are encrypted.
-- Descriptions of threads.
ALTER TABLE tk_threads ADD COLUMN sealed BLOB;
ALTER TABLE tk_threads ADD COLUMN description TEXT;
ALTER TABLE tk_memories ADD COLUMN sealed INTEGER;
{view-of-threads-with-description}
{view-of-checkpoints}
{views-of-writes}
CREATE TABLE tk_tenants (
    tenant BLOB PRIMARY KEY,
    version INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    key BLOB,
    quota BLOB
) WITHOUT ROWID, STRICT;
CREATE TABLE tk_keys (
    tenant BLOB NOT NULL,
    name BLOB NOT NULL,
    key BLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID, STRICT;

-- tick-bits: the bits of `updated` that `tick` does not have
12

-- memory-key: the unique key of a memory
memory

-- vector-key: the unique key of a vector
memory, field

-- bigint: the type of integers
INTEGER

-- replace-memories: replace an existing memory
ON CONFLICT ({memory-key}) DO UPDATE
SET {replaced-columns}, sealed = excluded.sealed
WHERE m.tenant = excluded.tenant AND m.space = excluded.space AND m.key = excluded.key

-- last-memory: the greatest row number: a new memory gets the next one, a replaced memory keeps its own
SELECT coalesce(max(n), 0) FROM tk_memories;

-- memories-in-order: without a prefix: read the index by time, so that nothing needs sorting
tk_memories m INDEXED BY tk_memories_updated

-- memories-below: with a prefix: read the index by namespace, and sort the few rows that it finds
tk_memories m INDEXED BY tk_memories_space

-- malformed-memories: memories whose value is not JSON, so that no filter can be evaluated
SELECT {memory-columns} FROM tk_memories m WHERE m.tenant = :tenant AND NOT json_valid(m.value) LIMIT 1;

-- put-words: add or replace the words of a memory in the index
INSERT OR REPLACE INTO tk_words (rowid, words) SELECT n, :words FROM tk_memories WHERE memory = :memory;

-- delete-words: delete the words of a memory from the index
DELETE FROM tk_words WHERE rowid = (SELECT n FROM tk_memories WHERE memory = :memory);

-- search-words: memories that contain one of some words, best match first
SELECT m.memory, f.words, f.times, m.updated, m.words_check IS NOT NULL
FROM (SELECT t.doc, count(*) AS words, sum(unicode(substr(t.term, -1)) - 57344) AS times
      FROM json_each(:words) AS w
      CROSS JOIN tk_terms t ON t.term >= w.value || char(57345) AND t.term <= w.value || char(57599)
      GROUP BY t.doc) AS f
CROSS JOIN tk_memories m ON m.n = f.doc
WHERE {conditions}
ORDER BY f.words DESC, f.times DESC, m.updated DESC, m.space, m.key LIMIT :limit;

-- this-thread: a thread by key
t.tenant = :tenant AND t.kind = :kind AND t.id = :thread_id

-- refs: item ranges are stored as packed bytes
:refs

-- where-tag: rows whose labels have a tag. The first condition skips a thread that does not have the tag at all, before
-- its checkpoints are read; as an EXISTS, SQLite would make a join of it and test it last
(SELECT 1 FROM tk_tags h WHERE h.thread = t.thread AND h.tag = :{tag} LIMIT 1) IS NOT NULL
  AND EXISTS (SELECT 1 FROM tk_tags g WHERE g.thread = {alias}.thread AND g.labels = {alias}.labels AND g.tag = :{tag})

-- join-in-order: look up the thread first, then its checkpoints
CROSS JOIN

-- insert-thread: add a thread's row; returns no row if it exists
INSERT INTO tk_threads (tenant, kind, id, epoch, rev, nexts, created, updated, checkpoints, writes, bytes, top, run,
                        step, source, status, labels, early, early_status, lease, family, top_writes, early_writes,
                        bytes_check, checksum, sealed, description)
VALUES (:tenant, :kind, :thread_id, :epoch, :rev, :nexts, :created, :updated, :checkpoints, :writes, :bytes, :top, :run,
        :step, :source, :status, :labels, :early, :early_status, :lease, :family, :top_writes, :early_writes, :bytes,
        :checksum, :sealed, :description)
ON CONFLICT DO NOTHING RETURNING thread;

-- set-updated: set the time of the last change
updated = :updated
