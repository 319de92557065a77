-- The tables of the usage index (docs/usage.md). All times are in seconds since the Unix epoch, in
-- UTC, and all durations in microseconds. Names are numbers here; people read views.sql.

-- Names of prompts and skills, upstreams, callers and endpoints. A list of groups is a name, too: a JSON array.
CREATE TABLE names (
    id INTEGER PRIMARY KEY,       -- 0: no name; 1: all those that found no room
    name TEXT NOT NULL UNIQUE,
    last_day INTEGER NOT NULL     -- the last day on which it was used
) STRICT;
INSERT INTO names VALUES (0, '', 9223372036854775807), (1, '(others)', 9223372036854775807);

-- The logs that were read, each with the place up to which its records are counted.
CREATE TABLE logs (
    instance TEXT PRIMARY KEY,    -- the id of the log
    segment INTEGER NOT NULL,
    bytes INTEGER NOT NULL,       -- bytes from the start of the segment
    seq INTEGER NOT NULL,         -- the last record that was read
    open_calls TEXT NOT NULL,     -- JSON: calls that were received and have not ended
    read_at INTEGER NOT NULL      -- the time of that record
) STRICT, WITHOUT ROWID;

-- kind: 0 all calls (name 0), 1 prompt or skill, 2 upstream, 3 caller, 4 endpoint.
CREATE TABLE calls_by_hour (
    kind INTEGER NOT NULL,
    hour INTEGER NOT NULL,
    name INTEGER NOT NULL,
    upstream INTEGER NOT NULL,    -- the last one of a prompt
    groups INTEGER NOT NULL,      -- the last ones of a caller
    uses INTEGER NOT NULL,        -- failures are among them
    failures INTEGER NOT NULL,
    denied INTEGER NOT NULL,
    limited INTEGER NOT NULL,
    micros INTEGER NOT NULL,      -- the duration of all uses
    last INTEGER NOT NULL,        -- the time of the last use; 0: none
    PRIMARY KEY (kind, hour, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE calls_by_day (
    kind INTEGER NOT NULL,
    day INTEGER NOT NULL,
    name INTEGER NOT NULL,
    upstream INTEGER NOT NULL,
    groups INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    denied INTEGER NOT NULL,
    limited INTEGER NOT NULL,
    micros INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (kind, day, name)
) STRICT, WITHOUT ROWID;

-- The calls of a prompt by a caller at an endpoint: of each day the most used.
CREATE TABLE pairs_by_day (
    day INTEGER NOT NULL,
    caller INTEGER NOT NULL,
    prompt INTEGER NOT NULL,
    upstream INTEGER NOT NULL,
    endpoint INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    denied INTEGER NOT NULL,
    limited INTEGER NOT NULL,
    micros INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (day, caller, prompt, upstream, endpoint)
) STRICT, WITHOUT ROWID;

-- How many uses took less than 64 µs * √2^step, and not less than the step before: of all calls,
-- and of the prompts, upstreams and callers that were most used.
CREATE TABLE durations_by_hour (
    kind INTEGER NOT NULL,
    hour INTEGER NOT NULL,
    name INTEGER NOT NULL,
    step INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    PRIMARY KEY (kind, hour, name, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE durations_by_day (
    kind INTEGER NOT NULL,
    day INTEGER NOT NULL,
    name INTEGER NOT NULL,
    step INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    PRIMARY KEY (kind, day, name, step)
) STRICT, WITHOUT ROWID;

CREATE VIEW usage_by_hour AS
SELECT c.hour AS time,
       strftime('%Y-%m-%d %H:00', c.hour, 'unixepoch') AS hour,
       CASE c.kind WHEN 0 THEN 'all'
                   WHEN 1 THEN iif(n.name GLOB 'skill://*', 'skill', 'prompt') WHEN 2 THEN 'upstream'
                   WHEN 3 THEN 'caller' ELSE 'endpoint' END AS kind,
       n.name AS name, u.name AS upstream, g.name AS groups,
       c.uses, c.failures, c.denied, c.limited,
       round(c.micros / 1000.0 / nullif(c.uses, 0), 1) AS mean_ms,
       datetime(nullif(c.last, 0), 'unixepoch') AS last_use
FROM calls_by_hour c
JOIN names n ON n.id = c.name JOIN names u ON u.id = c.upstream JOIN names g ON g.id = c.groups;

CREATE VIEW usage_by_day AS
SELECT c.day AS time,
       date(c.day, 'unixepoch') AS day,
       CASE c.kind WHEN 0 THEN 'all'
                   WHEN 1 THEN iif(n.name GLOB 'skill://*', 'skill', 'prompt') WHEN 2 THEN 'upstream'
                   WHEN 3 THEN 'caller' ELSE 'endpoint' END AS kind,
       n.name AS name, u.name AS upstream, g.name AS groups,
       c.uses, c.failures, c.denied, c.limited,
       round(c.micros / 1000.0 / nullif(c.uses, 0), 1) AS mean_ms,
       datetime(nullif(c.last, 0), 'unixepoch') AS last_use
FROM calls_by_day c
JOIN names n ON n.id = c.name JOIN names u ON u.id = c.upstream JOIN names g ON g.id = c.groups;

CREATE VIEW usage_by_pair AS
SELECT c.day AS time,
       date(c.day, 'unixepoch') AS day,
       k.name AS caller, p.name AS prompt, u.name AS upstream, e.name AS endpoint,
       c.uses, c.failures, c.denied, c.limited,
       round(c.micros / 1000.0 / nullif(c.uses, 0), 1) AS mean_ms,
       datetime(nullif(c.last, 0), 'unixepoch') AS last_use
FROM pairs_by_day c
JOIN names k ON k.id = c.caller JOIN names p ON p.id = c.prompt
JOIN names u ON u.id = c.upstream JOIN names e ON e.id = c.endpoint;

CREATE VIEW latency_by_day AS
SELECT c.day AS time,
       date(c.day, 'unixepoch') AS day,
       CASE c.kind WHEN 0 THEN 'all'
                   WHEN 1 THEN iif(n.name GLOB 'skill://*', 'skill', 'prompt') WHEN 2 THEN 'upstream'
                   ELSE 'caller' END AS kind,
       n.name AS name,
       round(0.064 * (1 << (c.step / 2)) * iif(c.step % 2, 1.4142135, 1), 3) AS below_ms,
       c.calls
FROM durations_by_day c JOIN names n ON n.id = c.name;

-- What a gateway has counted.
INSERT INTO names VALUES (2, 'up__p', 1763596800), (3, 'up', 1763596800), (4, 'ci', 1763596800), (5, '/mcp', 1763596800),
    (6, 'skill://up/a/SKILL.md', 1763596800);
INSERT INTO logs VALUES ('0011223344556677', 1, 512, 4, '[]', 1763640000);
INSERT INTO calls_by_hour VALUES
    (0, 1763640000, 0, 0, 0, 10, 1, 0, 0, 40000, 1763640300), (1, 1763640000, 2, 3, 0, 10, 1, 0, 0, 40000, 1763640300),
    (1, 1763640000, 6, 3, 0, 1, 0, 0, 0, 4000, 1763640300),
    (2, 1763640000, 3, 0, 0, 10, 1, 0, 0, 40000, 1763640300), (3, 1763640000, 4, 0, 0, 10, 1, 0, 0, 40000, 1763640300);
INSERT INTO calls_by_day SELECT kind, 1763596800, name, upstream, groups, uses, failures, denied, limited, micros, last FROM calls_by_hour;
INSERT INTO pairs_by_day VALUES (1763596800, 4, 2, 3, 5, 10, 1, 0, 0, 40000, 1763640300);
INSERT INTO durations_by_hour VALUES (0, 1763640000, 0, 12, 10), (1, 1763640000, 2, 12, 10), (2, 1763640000, 3, 12, 10), (3, 1763640000, 4, 12, 10);
INSERT INTO durations_by_day SELECT kind, 1763596800, name, step, calls FROM durations_by_hour;
PRAGMA user_version = 3;
