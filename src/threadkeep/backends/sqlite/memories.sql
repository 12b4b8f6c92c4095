-- Scripts that store or delete one memory: each is a whole transaction, which the transport executes in one call. They
-- are for memories without vectors. A script rolls itself back where more is to do: then a request makes the change.

-- roll-back-if: undo the transaction and fail if a condition is true
INSERT OR ROLLBACK INTO tk_parts (part, tenant, first, seq, drops) SELECT 0, NULL, x'', 0, 0 WHERE {it};

-- put-memory-at-once: store a memory without words; not if a stored one with its number has another key, words or vectors
BEGIN IMMEDIATE;
{insert-memory}
{replace-memories} AND m.vectors = 0 AND m.words_check = 0;
{roll-back-if changes() <> 1}
COMMIT;

-- put-memory-with-words-at-once: the same for a memory with words, which replace those of the stored one
BEGIN IMMEDIATE;
{insert-memory}
{replace-memories} AND m.vectors = 0;
{roll-back-if changes() <> 1}
{put-words}
COMMIT;

-- delete-memory-at-once: delete a memory and its words; not if it has vectors
BEGIN IMMEDIATE;
{roll-back-if EXISTS (SELECT 1 FROM tk_vectors v WHERE v.memory = :memory)}
{delete-words}
{delete-memories}
COMMIT;
