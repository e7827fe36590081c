CREATE SCHEMA lease_queue;

-- A 'delayed' job is a ready one whose next_run_at lies ahead: the clock makes it due, no statement has to.
CREATE TABLE lease_queue.jobs (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payload          jsonb       NOT NULL,
    state            text        NOT NULL DEFAULT 'ready',
    priority         int         NOT NULL DEFAULT 0,
    next_run_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts         int         NOT NULL DEFAULT 0,
    max_attempts     int         NOT NULL,
    fencing_token    bigint      NOT NULL DEFAULT 0,
    lease_holder     text,
    lease_expires_at timestamptz,
    idempotency_key  text,
    settled_token    bigint,  -- the token of the last accepted complete or fail ...
    settled_as       text,    -- ... and which of the two it was: a repeat of it gets the same answer
    last_error       text,
    result           jsonb,
    requeued_from    bigint      REFERENCES lease_queue.jobs (id),
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at      timestamptz,

    -- When a claim may take the job: at its time if nobody holds it, else when the holder's lease is over.
    claimable_at     timestamptz GENERATED ALWAYS AS (COALESCE(lease_expires_at, next_run_at)) STORED,

    CONSTRAINT jobs_state_known CHECK (state IN ('ready', 'leased', 'succeeded', 'failed', 'cancelled')),
    CONSTRAINT jobs_leased_has_holder CHECK ((state = 'leased') = (lease_holder IS NOT NULL)),
    CONSTRAINT jobs_leased_has_expiry CHECK ((state = 'leased') = (lease_expires_at IS NOT NULL)),
    CONSTRAINT jobs_attempts_positive CHECK (attempts >= 0 AND max_attempts >= 1),
    CONSTRAINT jobs_settled_known CHECK (settled_as IN ('complete', 'fail')),
    CONSTRAINT jobs_settled_whole CHECK ((settled_token IS NULL) = (settled_as IS NULL)),
    CONSTRAINT jobs_current_token UNIQUE (id, fencing_token)
)
-- A claimed job leaves dead entries at the head of jobs_claimable, where nothing new is ever written and only
-- VACUUM cleans up. The default of a fifth of the table would let a claim walk over thousands of pages first.
WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- The claim's index. An expired lease with no attempt left is the reaper's to end, so it is not in here.
CREATE INDEX jobs_claimable ON lease_queue.jobs (priority DESC, claimable_at, id)
    WHERE state = 'ready' OR (state = 'leased' AND attempts < max_attempts);

-- The reaper's: oldest expiry first.
CREATE INDEX jobs_leased ON lease_queue.jobs (lease_expires_at, id) WHERE state = 'leased';

CREATE INDEX jobs_dead_letters ON lease_queue.jobs (id) WHERE state = 'failed';

-- Partial: most jobs have neither, and every update of a job writes every index it is in.
CREATE UNIQUE INDEX jobs_idempotency_key ON lease_queue.jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX jobs_requeued_from ON lease_queue.jobs (requeued_from) WHERE requeued_from IS NOT NULL;

-- One row per accepted complete, written by nothing else.
CREATE TABLE lease_queue.ledger (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id        bigint      NOT NULL,
    fencing_token bigint      NOT NULL,
    worker        text        NOT NULL,
    result        jsonb,
    recorded_at   timestamptz NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT ledger_once_per_token UNIQUE (job_id, fencing_token),

    -- The second protection beside the guard: the token must be the job's current one. UNIQUE alone accepts
    -- token 1 after token 2. And a job with a ledger row can never be claimed again: its token is held.
    CONSTRAINT ledger_current_token FOREIGN KEY (job_id, fencing_token)
        REFERENCES lease_queue.jobs (id, fencing_token)
);
