-- Makes the tables of an index of version 1 those of version 2: durations are kept of prompts and callers, too.
DROP VIEW latency_by_day;
ALTER TABLE durations_by_hour RENAME TO hours_1;
ALTER TABLE durations_by_day RENAME TO days_1;

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

INSERT INTO durations_by_hour SELECT iif(upstream, 2, 0), hour, upstream, step, calls FROM hours_1;
INSERT INTO durations_by_day SELECT iif(upstream, 2, 0), day, upstream, step, calls FROM days_1;
DROP TABLE hours_1;
DROP TABLE days_1;
