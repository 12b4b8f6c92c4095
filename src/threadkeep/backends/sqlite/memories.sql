-- Scripts that store some memories, or delete one: each is a whole transaction, which the transport executes in one
-- call. They are for memories without vectors. A script undoes itself where more is to do: then a request makes the
-- change. `{rows}` is replaced by a row of placeholders for each memory.

-- roll-back-if: undo the transaction and fail if a condition is true
INSERT OR ROLLBACK INTO tk_parts (part, tenant, first, seq, drops) SELECT 0, NULL, x'', 0, 0 WHERE {it};

-- put-at-once: store memories without words; not if a stored one with such a number has another key, words or vectors
-- This is a single statement, and so a transaction by itself: BEGIN, COMMIT and a test of the result take a third
-- longer. It fails, because `part` must not be NULL, if it must not replace a stored memory.
{insert-memories} VALUES {rows}
ON CONFLICT ({memory-key}) DO UPDATE
SET {replaced-columns}, sealed = excluded.sealed,
    part = CASE WHEN m.tenant = excluded.tenant AND m.space = excluded.space AND m.key = excluded.key
                 AND m.vectors = 0 AND m.words_check = 0 THEN m.part END;

-- put-with-words-at-once: the same for memories with words, which replace those of the stored ones
BEGIN IMMEDIATE;
{insert-memories} VALUES {rows}
{replace-memories} AND m.vectors = 0;
{roll-back-if changes() <> :count}
INSERT OR REPLACE INTO tk_words (rowid, words)
SELECT m.n, w.column2 FROM (VALUES {words}) AS w CROSS JOIN tk_memories m ON m.memory = w.column1;
COMMIT;

-- delete-at-once: delete a memory and its words; not if it has vectors, or if the tenant is encrypted and the caller does not know
BEGIN IMMEDIATE;
{roll-back-if EXISTS (SELECT 1 FROM tk_vectors v WHERE v.memory = :memory)
              OR EXISTS (SELECT 1 FROM tk_tenants k WHERE k.tenant = :tenant AND k.sealed > :sealed)}
{delete-words}
{delete-memories}
COMMIT;
