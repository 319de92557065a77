-- The audit log in ClickHouse, as database.yaml stores it. A record that came twice counts once.
CREATE VIEW audit.records AS
SELECT DISTINCT
    JSONExtractString(Body, 'instance') AS log,
    JSONExtractUInt(Body, 'seq') AS seq,
    Timestamp AS time,
    JSONExtractString(Body, 'event') AS event,
    JSONExtractString(Body, 'boot') AS boot,
    JSONExtractUInt(Body, 'call') AS call,
    JSONExtractString(Body, 'caller') AS caller,
    JSONExtractString(Body, 'name') AS name,
    JSONExtractString(Body, 'decision') AS decision,
    JSONExtractString(Body, 'rule') AS rule,
    Body AS line
FROM audit.otel_logs
WHERE ScopeName = 'promptgate.audit' AND seq > 0;

-- Who used the prompt X?
SELECT caller, count() AS uses, max(time) AS last
FROM audit.records
WHERE event = 'received' AND name = 'X' AND decision = 'allowed'
GROUP BY caller ORDER BY uses DESC;

-- What was denied to the caller Y?
SELECT time, name, rule FROM audit.records
WHERE event = 'received' AND caller = 'Y' AND decision = 'denied'
ORDER BY time;

-- What changed yesterday?
SELECT time, event, line FROM audit.records
WHERE toDate(time) = yesterday()
  AND event IN ('config_reloaded', 'definition_changed', 'prompt_approved', 'prompt_rejected',
                'prompt_withdrawn', 'prompt_rolled_back', 'label_moved', 'label_removed')
ORDER BY time;
