-- The views of the usage index, which people read. No public name of a prompt begins as those of
-- skills do.

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
