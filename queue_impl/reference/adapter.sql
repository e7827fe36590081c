-- What the harness asks of the tables behind the queue's back.

-- name: observe
-- One statement, so one snapshot; a job is delayed or not by the very time that is reported with it.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS at
)
SELECT
    (extract(epoch FROM clock.at) * 1000000)::bigint AS at_us,
    COALESCE(
        (
            SELECT json_agg(
                json_build_array(
                    id,
                    CASE WHEN state = 'ready' AND next_run_at > clock.at THEN 'delayed' ELSE state END,
                    fencing_token,
                    attempts,
                    max_attempts,
                    lease_holder,
                    (extract(epoch FROM lease_expires_at) * 1000000)::bigint,
                    (extract(epoch FROM next_run_at) * 1000000)::bigint,
                    idempotency_key,
                    payload,
                    result,
                    requeued_from
                )
                ORDER BY id
            )
            FROM lease_queue.jobs
        ),
        '[]'
    ) AS jobs,
    COALESCE(
        (
            SELECT json_agg(json_build_array(job_id, fencing_token, worker) ORDER BY id)
            FROM lease_queue.ledger
        ),
        '[]'
    ) AS ledger
FROM clock

-- name: reset_by_delete
-- Foreign keys are checked when the whole statement is done, so ledger and jobs can go in one.
WITH no_ledger AS (
    DELETE FROM lease_queue.ledger
),
no_jobs AS (
    DELETE FROM lease_queue.jobs
)
SELECT
    setval('lease_queue.jobs_id_seq', 1, false),
    setval('lease_queue.ledger_id_seq', 1, false)

-- name: reset_by_truncate
TRUNCATE lease_queue.ledger, lease_queue.jobs RESTART IDENTITY

-- name: expire
-- Liveness data only. NOWAIT: a row that an actor is held on would make this wait for ever.
WITH lease AS MATERIALIZED (
    SELECT id
    FROM lease_queue.jobs
    WHERE id = %(job_id)s
        AND fencing_token = %(token)s
        AND state = 'leased'
    FOR UPDATE NOWAIT
)
UPDATE lease_queue.jobs
SET lease_expires_at = LEAST(jobs.lease_expires_at, clock_timestamp())
FROM lease
WHERE jobs.id = lease.id

-- name: insert_ledger_unguarded
-- What a complete without its guard would write: only the ledger's own constraints stand in its way.
INSERT INTO lease_queue.ledger (job_id, fencing_token, worker)
VALUES (%(job_id)s, %(token)s, %(worker)s)

-- name: set_token
UPDATE lease_queue.jobs
SET fencing_token = %(token)s
WHERE id = %(job_id)s
