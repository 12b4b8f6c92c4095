-- Views for people who ask the database themselves; threadkeep never reads them. Ids are text, times are UTC, channels have
-- their names. `number` is the thread's number in the tables: a condition on it is quick, but in tk_v_sizes,
-- which adds up everything first; one on text reads all threads.

-- text: bytes as text; what no text can hold, a NUL or a lone surrogate, in hexadecimal digits after \x
-- GLOB takes a lone surrogate for U+FFFD; the characters that are, or are taken for, U+FFFD themselves are left out before.
CASE WHEN instr({it}, x'00') OR (instr({it}, x'ED') AND
        replace(replace(replace(CAST({it} AS TEXT), char(65533), ''), char(65534), ''), char(65535), '') GLOB '*[' || char(65533) || ']*')
     THEN '\x' || lower(hex({it})) ELSE CAST({it} AS TEXT) END

-- packed: a packed id as text
CASE substr({it}, 1, 1)
     WHEN x'75' THEN lower(substr(hex({it}), 3, 8) || '-' || substr(hex({it}), 11, 4) || '-' || substr(hex({it}), 15, 4) || '-' ||
                           substr(hex({it}), 19, 4) || '-' || substr(hex({it}), 23))
     WHEN x'68' THEN lower(substr(hex({it}), 3))
     ELSE {text substr({it}, 2)} END

-- item-name: the text of a name's item: after format byte and checksum. One that is compressed is # and its number.
CASE WHEN substr({it}.payload, 1, 1) = x'00' THEN {text substr({it}.payload, 6)} ELSE '#' || {it}.n END

-- moment: milliseconds as text that sorts by time
strftime('%Y-%m-%d %H:%M:%f', {it} / 1000.0, 'unixepoch')

-- schema-3: threads by id, whatever their kind; PostgreSQL has that from the beginning, and gets its column `tick`
CREATE INDEX tk_threads_id ON tk_threads (tenant, id, kind);

-- schema-4: views
CREATE VIEW tk_v_threads AS
SELECT t.thread AS number, {text t.tenant} AS tenant, t.kind, {text t.id} AS thread, t.status, t.checkpoints, t.writes, t.bytes,
       {moment t.created} AS created, {moment t.updated} AS updated, {text t.top} AS checkpoint, {packed t.run} AS run, t.step,
       t.source
FROM tk_threads t;
CREATE VIEW tk_v_checkpoints AS
SELECT t.number, t.tenant, t.kind, t.thread, {text c.ns} AS ns, {text c.id} AS checkpoint,
       {packed c.parent} AS parent, {packed c.run} AS run, c.step, c.source, {moment c.time} AS time, c.hidden,
       length(c.body) AS body_bytes
FROM tk_checkpoints c JOIN tk_v_threads t ON t.number = c.thread;
CREATE VIEW tk_v_writes AS
SELECT t.number, t.tenant, t.kind, t.thread, {text w.ns} AS ns,
       {text w.checkpoint} AS checkpoint, {packed w.task} AS task,
       CASE WHEN substr(w.path, 1, 16) = CAST('~__pregel_pull, ' AS BLOB) THEN {text substr(w.path, 17)} END AS node,
       {text w.path} AS path, e.value AS idx, {item-name i} AS channel,
       json_extract(w.entries, '$[' || (e.key + 2) || ']') AS bytes, {moment w.time} AS time, {packed w.run} AS run
FROM tk_writes w JOIN tk_v_threads t ON t.number = w.thread JOIN json_each(w.entries) e ON e.key % 3 = 0
LEFT JOIN tk_items i ON i.thread = w.thread AND i.lane = 0 AND i.n = json_extract(w.entries, '$[' || (e.key + 1) || ']');
CREATE VIEW tk_v_sizes AS
WITH held AS (
    SELECT thread, lane, count(*) AS items, sum(length(payload)) AS stored FROM tk_items GROUP BY thread, lane
), wrote AS (
    SELECT w.thread, json_extract(w.entries, '$[' || (e.key + 1) || ']') AS n, count(*) AS writes,
           sum(json_extract(w.entries, '$[' || (e.key + 2) || ']')) AS written
    FROM tk_writes w JOIN json_each(w.entries) e ON e.key % 3 = 0 GROUP BY w.thread, 2
), parts AS (
    SELECT i.thread, 'channel' AS part, {item-name i} AS channel, coalesce(h.items, 0) AS items, coalesce(h.stored, 0) AS stored,
           coalesce(o.writes, 0) AS writes, coalesce(o.written, 0) AS written
    FROM tk_items i LEFT JOIN held h ON h.thread = i.thread AND h.lane = i.n + 3
    LEFT JOIN wrote o ON o.thread = i.thread AND o.n = i.n
    WHERE i.lane = 0 AND (h.items > 0 OR o.writes > 0)
    UNION ALL
    SELECT thread, 'shared', NULL, sum(items), sum(stored), 0, 0 FROM held WHERE lane < 3 GROUP BY thread
    UNION ALL
    SELECT t.thread, 'rows', NULL, 0, t.bytes - coalesce(sum(h.stored), 0), 0, 0
    FROM tk_threads t LEFT JOIN held h ON h.thread = t.thread GROUP BY t.thread, t.bytes
)
SELECT p.thread AS number, t.tenant, t.kind, t.thread, p.part, p.channel, p.items, p.stored,
       p.writes, p.written
FROM parts p JOIN tk_v_threads t ON t.number = p.thread;
CREATE VIEW tk_v_activity AS
SELECT number, tenant, kind, thread, ns, date(time) AS day, node, channel, count(*) AS writes, sum(bytes) AS bytes,
       avg(bytes) AS average
FROM tk_v_writes GROUP BY number, tenant, kind, thread, ns, date(time), node, channel;
