-- Every statement the queue sends, each under the name the code calls it by.
--
-- Time is clock_timestamp() everywhere: a transaction's now() is frozen at its start and would accept a lease
-- that expired while the transaction waited. Where it bounds an index scan it stands in a sub-select, because a
-- volatile call cannot be an index condition and a sub-select is evaluated once.

-- name: begin
-- Explicit, so that a server or role default of REPEATABLE READ cannot turn a lock wait into an error.
BEGIN ISOLATION LEVEL READ COMMITTED

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: find_by_key
SELECT id, payload = %(payload)s::jsonb AS same_payload
FROM lease_queue.jobs
WHERE idempotency_key = %(key)s

-- name: insert_job
-- A job without a key conflicts with nothing.
INSERT INTO lease_queue.jobs (payload, priority, next_run_at, max_attempts, idempotency_key)
VALUES (
    %(payload)s::jsonb,
    %(priority)s,
    clock_timestamp() + %(delay_s)s * interval '1 second',
    %(max_attempts)s,
    %(key)s
)
ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id

-- name: claim
-- Highest priority first, within it the longest claimable. One index range scan over (priority, claimable_at)
-- would walk every delayed job and every live lease of a high priority before it came to a due job of a lower
-- one; so the priorities in use are visited one by one (a loose index scan), and within each only what is due.
--
-- LIMIT 100 is the largest batch there is (MAX_BATCH). It is a constant so that the planner knows few rows are
-- wanted also in a generic plan; the parameter's LIMIT stops the scan, and the locking, at what was asked for.
-- There is no ORDER BY beside it: a sort would lock all levels' rows first. The nested loop yields them in order.
WITH RECURSIVE level (priority) AS (
    (
        SELECT priority
        FROM lease_queue.jobs
        WHERE state = 'ready' OR (state = 'leased' AND attempts < max_attempts)
        ORDER BY priority DESC
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT jobs.priority
        FROM lease_queue.jobs
        WHERE (state = 'ready' OR (state = 'leased' AND attempts < max_attempts))
            AND jobs.priority < level.priority
        ORDER BY jobs.priority DESC
        LIMIT 1
    )
    FROM level
    WHERE level.priority IS NOT NULL
),
due AS MATERIALIZED (
    SELECT candidate.id, candidate.claimable_at
    FROM level
    CROSS JOIN LATERAL (
        SELECT id, claimable_at
        FROM lease_queue.jobs
        WHERE (state = 'ready' OR (state = 'leased' AND attempts < max_attempts))
            AND jobs.priority = level.priority
            AND claimable_at <= (SELECT clock_timestamp())
        ORDER BY claimable_at, id
        LIMIT 100
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    LIMIT %(limit)s
)
UPDATE lease_queue.jobs
SET state = 'leased',
    fencing_token = jobs.fencing_token + 1,
    attempts = jobs.attempts + 1,
    lease_holder = %(worker)s,
    lease_expires_at = clock_timestamp() + %(ttl_s)s * interval '1 second'
FROM due
WHERE jobs.id = due.id
RETURNING
    jobs.id AS job_id,
    jobs.fencing_token AS token,
    jobs.payload,
    jobs.attempts,
    jobs.max_attempts,
    jobs.priority,
    jobs.lease_expires_at AS expires_at,
    due.claimable_at AS was_claimable_at

-- name: lock_job
-- Locks and judges nothing: a condition in here would be evaluated before the wait for the row.
SELECT id
FROM lease_queue.jobs
WHERE id = %(job_id)s
FOR UPDATE

-- name: lock_jobs
-- In id order, so that two batches cannot deadlock.
SELECT id
FROM lease_queue.jobs
WHERE id = ANY(%(job_ids)s)
ORDER BY id
FOR UPDATE

-- name: judge_job
-- Runs once the row is locked, so what it says stays true until the transaction ends.
SELECT
    fencing_token AS current_token,
    attempts,
    CASE
        WHEN fencing_token <> %(token)s THEN 'token_mismatch'
        WHEN state <> 'leased' AND settled_token = %(token)s AND settled_as = %(operation)s THEN 'repeated'
        WHEN state IN ('succeeded', 'failed', 'cancelled') THEN 'terminal'
        WHEN state <> 'leased' THEN 'not_leased'
        WHEN lease_expires_at <= clock_timestamp() THEN 'lease_expired'
        WHEN %(operation)s = 'heartbeat'
            AND clock_timestamp() + %(ttl_s)s * interval '1 second' < lease_expires_at THEN 'would_shorten'
        ELSE 'accepted'
    END AS verdict
FROM lease_queue.jobs
WHERE id = %(job_id)s

-- name: judge_cancel
SELECT
    fencing_token AS current_token,
    attempts,
    CASE
        WHEN state IN ('succeeded', 'failed', 'cancelled') THEN 'terminal'
        ELSE 'accepted'
    END AS verdict
FROM lease_queue.jobs
WHERE id = %(job_id)s

-- name: insert_ledger
INSERT INTO lease_queue.ledger (job_id, fencing_token, worker, result)
VALUES (%(job_id)s, %(token)s, %(worker)s, %(result)s::jsonb)

-- name: mark_succeeded
UPDATE lease_queue.jobs
SET state = 'succeeded',
    result = %(result)s::jsonb,
    finished_at = clock_timestamp(),
    lease_holder = NULL,
    lease_expires_at = NULL,
    settled_token = %(token)s,
    settled_as = 'complete'
WHERE id = %(job_id)s

-- name: record_failure
-- The retry counts from the failure, not from when the job was last due.
UPDATE lease_queue.jobs
SET state = CASE WHEN attempts < max_attempts THEN 'ready' ELSE 'failed' END,
    next_run_at = CASE
        WHEN attempts < max_attempts THEN clock_timestamp() + %(backoff_s)s * interval '1 second'
        ELSE next_run_at
    END,
    finished_at = CASE WHEN attempts < max_attempts THEN NULL ELSE clock_timestamp() END,
    last_error = %(error)s,
    lease_holder = NULL,
    lease_expires_at = NULL,
    settled_token = %(token)s,
    settled_as = 'fail'
WHERE id = %(job_id)s

-- name: extend_lease
UPDATE lease_queue.jobs
SET lease_expires_at = clock_timestamp() + %(ttl_s)s * interval '1 second'
WHERE id = %(job_id)s

-- name: mark_cancelled
UPDATE lease_queue.jobs
SET state = 'cancelled',
    finished_at = clock_timestamp(),
    lease_holder = NULL,
    lease_expires_at = NULL
WHERE id = %(job_id)s

-- name: snapshot_expired
SELECT id
FROM lease_queue.jobs
WHERE state = 'leased'
    AND lease_expires_at <= (SELECT clock_timestamp())
    AND id <> ALL(%(besides)s::bigint[])
ORDER BY lease_expires_at, id
LIMIT %(limit)s

-- name: lock_expired
-- A row somebody else has locked is being settled, renewed, claimed or reaped: it is theirs.
SELECT id
FROM lease_queue.jobs
WHERE id = ANY(%(job_ids)s)
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: recheck_expired
SELECT id
FROM lease_queue.jobs
WHERE id = ANY(%(job_ids)s)
    AND state = 'leased'
    AND lease_expires_at <= clock_timestamp()
ORDER BY id

-- name: end_expired
-- A lease lost is an attempt spent, so a crash loop ends here.
UPDATE lease_queue.jobs
SET state = 'failed',
    finished_at = clock_timestamp(),
    last_error = 'the lease of the last attempt expired',
    lease_holder = NULL,
    lease_expires_at = NULL
WHERE id = ANY(%(job_ids)s)
    AND attempts >= max_attempts
RETURNING id AS job_id, fencing_token AS token, state

-- name: requeue_expired
UPDATE lease_queue.jobs
SET state = 'ready',
    next_run_at = clock_timestamp(),
    lease_holder = NULL,
    lease_expires_at = NULL
WHERE id = ANY(%(job_ids)s)
    AND attempts < max_attempts
RETURNING id AS job_id, fencing_token AS token, state

-- name: dead_letters
SELECT id AS job_id, payload, attempts, fencing_token AS token, last_error, finished_at
FROM lease_queue.jobs
WHERE state = 'failed'
    AND id > %(after_id)s
ORDER BY id
LIMIT %(limit)s

-- name: insert_requeued
-- Terminal states never change, so the dead letter stays and its successor names it.
INSERT INTO lease_queue.jobs (payload, priority, max_attempts, requeued_from)
SELECT payload, priority, max_attempts, id
FROM lease_queue.jobs
WHERE id = %(job_id)s
    AND state = 'failed'
ON CONFLICT (requeued_from) WHERE requeued_from IS NOT NULL DO NOTHING
RETURNING id

-- name: find_requeued
SELECT job.state, successor.id AS successor_id
FROM lease_queue.jobs AS job
LEFT JOIN lease_queue.jobs AS successor ON successor.requeued_from = job.id
WHERE job.id = %(job_id)s
