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

-- Results of tasks that are used again, by what they are made of; insert only. They
-- leave with their job, which stays while another job uses them.
CREATE TABLE results (
  tenant INT NOT NULL,
  identity {bytes} NOT NULL, -- SHA-256
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  job_id {uuid} NOT NULL,
  at BIGINT NOT NULL,
  PRIMARY KEY (tenant, identity)
) {key};
CREATE UNIQUE INDEX results_task ON results (task_id, generation);
CREATE INDEX results_job ON results (job_id);

CREATE TABLE reuses ( -- tasks that ended with the result of another; insert only
  task_id {uuid} NOT NULL,
  generation INT NOT NULL,
  job_id {uuid} NOT NULL,
  identity {bytes} NOT NULL,
  of_task {uuid} NOT NULL,
  of_generation INT NOT NULL,
  of_job {uuid} NOT NULL,
  PRIMARY KEY (task_id, generation)
) {key};
CREATE INDEX reuses_job ON reuses (job_id);
CREATE INDEX reuses_of ON reuses (of_task, of_generation); -- who used it
CREATE INDEX reuses_of_job ON reuses (of_job, job_id); -- whom a job must wait for before it leaves

CREATE TABLE artifact_uses ( -- jobs whose input names an artifact; insert only
  artifact {uuid} NOT NULL,
  job_id {uuid} NOT NULL,
  of_job {uuid} NOT NULL, -- that made it
  PRIMARY KEY (artifact, job_id)
) {key};
CREATE INDEX artifact_uses_job ON artifact_uses (job_id);
CREATE INDEX artifact_uses_of_job ON artifact_uses (of_job, job_id);
