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

-- The calls of the last day: of a prompt by a caller at an endpoint, whose latencies are in the same
-- step.
CREATE TABLE calls_by_minute (
    minute INTEGER NOT NULL,
    caller INTEGER NOT NULL,
    prompt INTEGER NOT NULL,
    upstream INTEGER NOT NULL,
    endpoint INTEGER NOT NULL,
    step INTEGER NOT NULL,        -- as in durations_by_hour; -1: without a latency
    uses INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    denied INTEGER NOT NULL,
    limited INTEGER NOT NULL,
    micros INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (minute, caller, prompt, upstream, endpoint, step)
) STRICT, WITHOUT ROWID;

-- The first minute whose calls are all in calls_by_minute.
CREATE TABLE minutes (since INTEGER NOT NULL) STRICT;
INSERT INTO minutes VALUES (0);

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
