-- runs with: 2

-- How the parents of a waiting task that have ended count, where its rule asks: a
-- task that waits for the success of all keeps to unmet.
ALTER TABLE task_pending ADD COLUMN parents_succeeded INT NOT NULL DEFAULT 0;
ALTER TABLE task_pending ADD COLUMN parents_failed INT NOT NULL DEFAULT 0;
ALTER TABLE task_pending ADD COLUMN parents_skipped INT NOT NULL DEFAULT 0;

-- How a task came to its end where its status does not tell: see lifecycle.How.
ALTER TABLE task_final ADD COLUMN how SMALLINT NOT NULL DEFAULT 0;

-- Failures that something declared has made good: a fallback, on_failure: degrade, a
-- rescue. A job with one is degraded. phase is how far its end has come.
ALTER TABLE job_live ADD COLUMN handled INT NOT NULL DEFAULT 0;
ALTER TABLE job_live ADD COLUMN phase SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE job_final ADD COLUMN handled INT NOT NULL DEFAULT 0;
